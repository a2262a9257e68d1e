"""Environments: batched MuJoCo, Gymnasium's own behind the same call, and R x N of them from R seeds."""

from envs.make import make_vec
from envs.seeded import SeededEnvs, Transition

__all__ = ["SeededEnvs", "Transition", "make_vec"]
