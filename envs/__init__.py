"""Environments: batched MuJoCo, Gymnasium's own behind the same call, and R x N of them from R seeds."""

from envs.make import find_spec, make_vec, plain_id, register
from envs.seeded import SeededEnvs, Transition
from envs.task import Episode, Task

__all__ = ["Episode", "SeededEnvs", "Task", "Transition", "find_spec", "make_vec", "plain_id", "register"]
