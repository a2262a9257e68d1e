"""`AntDirection-v0`: OGBench's ant on a plane without walls, to walk in any direction. Importing this registers the id.

    python single_file/sac.py --env-id envs.ant_direction:AntDirection-v0

A policy for it is what OGBench's antmaze data is made with (its `online-ant-xy-v0`): the body, its observation without
x and y, and the physics are those of antmaze, so that a planner only has to say where to go.
"""

import importlib.util
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer
from gymnasium.spaces import Box
from numpy.typing import NDArray

from envs.make import require
from envs.mujoco import quiet_mujoco

FRAME_SKIP = 5  # steps of the simulator, each 0.02 seconds, in one step
REDRAW = 100  # steps after which there is a new direction
RESET_NOISE = 0.1  # half the width of positions at a reset, and standard deviation of velocities
HEALTHY = (0.2, 1.0)  # heights of the torso within which an episode goes on, in metres


class AntDirection(gym.Env):
    """Observation [29]: height and posture (13), velocities (14), the direction to go (2), a unit vector.

    The reward is the way in this direction in one step, in metres. The direction is redrawn every 100 steps, after the
    reward; it is uniform on the circle. The task ends where the torso's height leaves [0.2, 1]. Raises
    ModuleNotFoundError where OGBench, which has the body, is not installed.
    """

    observation_space = Box(-np.inf, np.inf, (29,), np.float64)
    action_space = Box(-1, 1, (8,), np.float32)
    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array", "depth_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        require("AntDirection-v0", "mazes", ogbench="ogbench")
        package = importlib.util.find_spec("ogbench")
        assert package and package.submodule_search_locations
        body = Path(package.submodule_search_locations[0]) / "locomaze" / "assets" / "ant.xml"
        with quiet_mujoco():
            spec = mujoco.MjSpec.from_file(str(body))
            camera = spec.body("torso").add_camera(name="track", pos=[0, -6, 4], quat=[0.8817, 0.4719, 0, 0])
            camera.mode = mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM  # it goes along, and does not turn
            self.model = spec.compile()
        self.data = mujoco.MjData(self.model)
        self.render_mode = render_mode
        self.mujoco_renderer = MujocoRenderer(self.model, self.data, width=480, height=480)
        self.direction = np.zeros(2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos += self.np_random.uniform(-RESET_NOISE, RESET_NOISE, self.model.nq)
        self.data.qvel += RESET_NOISE * self.np_random.standard_normal(self.model.nv)
        mujoco.mj_forward(self.model, self.data)
        self.steps = 0
        self._redraw()
        return self._observation(), {}

    def step(self, action: NDArray) -> tuple[NDArray, float, bool, bool, dict]:
        before = self.data.qpos[:2].copy()
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data, FRAME_SKIP)
        reward = float((self.data.qpos[:2] - before) @ self.direction)
        self.steps += 1
        if self.steps % REDRAW == 0:
            self._redraw()
        low, high = HEALTHY
        return self._observation(), reward, not low <= self.data.qpos[2] <= high, False, {}

    def render(self) -> NDArray | None:
        """A picture [480, 480, 3], or nothing where a window shows it; as in Gymnasium's MuJoCo tasks."""
        return self.mujoco_renderer.render(self.render_mode)

    def close(self) -> None:
        self.mujoco_renderer.close()

    def _redraw(self) -> None:
        way = self.np_random.standard_normal(2)
        self.direction = way / np.linalg.norm(way)

    def _observation(self) -> NDArray[np.float64]:
        return np.concatenate([self.data.qpos[2:], self.data.qvel, self.direction])


gym.register("AntDirection-v0", "envs.ant_direction:AntDirection", max_episode_steps=1000, disable_env_checker=True)
