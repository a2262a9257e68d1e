"""Gymnasium's MuJoCo tasks as one batch: physics on a thread pool, everything else computed for all at once.

Every number equals what `gymnasium.make(id)` gives on the same MuJoCo, bit for bit: observations, rewards,
terminations, truncations and infos. There are all v5 tasks, and Hopper-v4 and Walker2d-v4, which D4RL's data is closer
to. Models, spaces and defaults are Gymnasium's own, read from one environment that it makes. MuJoCo's bindings release
the interpreter lock inside `mj_step`, so threads step environments at the same time.

`tasks` has the formulas of each task, `physics` the threads that step MuJoCo, `vector` the vector environment (resets,
time limits, infos, and the state that is saved), and `simulator` steps from given states.
"""

from envs.mujoco.physics import quiet_mujoco
from envs.mujoco.simulator import Simulator
from envs.mujoco.tasks import TASKS
from envs.mujoco.vector import RENDERING, MujocoVectorEnv

__all__ = ["RENDERING", "TASKS", "MujocoVectorEnv", "Simulator", "quiet_mujoco"]
