"""Gymnasium's MuJoCo tasks as one batch: physics on a thread pool, everything else computed for all at once.

Every number equals what `gymnasium.make(id)` gives on the same MuJoCo, bit for bit: observations, rewards,
terminations, truncations and infos. There are all v5 tasks, and Hopper-v4 and Walker2d-v4, which D4RL's data is closer
to. Models, spaces and defaults are Gymnasium's own, read from one environment that it makes. MuJoCo's bindings release
the interpreter lock inside `mj_step`, so threads step environments at the same time.

The tasks below restate the formulas of `gymnasium/envs/mujoco/*_v5.py` for arrays with the environment first. Where the
order of floating-point operations matters, it is that of the original; a comment says so.
"""

import inspect
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Thread
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

Array = NDArray[Any]
Info = dict[str, Array]

RENDERING = {
    "render_mode",
    "width",
    "height",
    "camera_id",
    "camera_name",
    "default_camera_config",
    "max_geom",
    "visual_options",
}
# What an exact continuation of the physics needs; all else is computed anew in every step.
STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)


class quiet_mujoco:
    """Within it, MuJoCo's warnings about Gymnasium's own model files reach neither the terminal nor a log file."""

    def __enter__(self) -> None:
        self.handler = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda message: None)

    def __exit__(self, *exception: object) -> None:
        mujoco.set_mju_user_warning(self.handler)


def norm(vectors: Array) -> Array:
    """Euclidean norms of the rows [n, k] with the dot product that `np.linalg.norm` uses for one vector."""
    return np.sqrt(np.vecdot(vectors, vectors))


def sum_of_squares(values: Array) -> Array:
    """Sums over all but the first axis, each added up in the order of `np.sum(np.square(values[i]))`."""
    return np.square(values).reshape(len(values), -1).sum(-1)


class Task:
    """One task's formulas. `d` holds the MjData fields named in `fields`, each [n, …]; `p` the options."""

    fields: tuple[str, ...] = ("qpos", "qvel")
    gaussian_velocity = False  # initial velocities normal instead of uniform

    def __init__(self, env: Any, options: dict[str, Any]):
        self.model, self.dt = env.model, env.dt
        self.init_qpos, self.init_qvel = env.init_qpos.copy(), env.init_qvel.copy()
        self.p = SimpleNamespace(**options)

    def initial_state(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """One environment's (qpos, qvel) after a reset."""
        scale = self.p.reset_noise_scale
        qpos = self.init_qpos + rng.uniform(low=-scale, high=scale, size=self.model.nq)
        if self.gaussian_velocity:
            return qpos, self.init_qvel + scale * rng.standard_normal(self.model.nv)
        return qpos, self.init_qvel + rng.uniform(low=-scale, high=scale, size=self.model.nv)

    def position(self, d: SimpleNamespace) -> Array | None:
        """The place whose move in a step is rewarded, [n, …]."""
        return None

    def observe(self, d: SimpleNamespace) -> Array:
        """Observations [n, O]."""
        raise NotImplementedError

    def outcome(self, d: SimpleNamespace, move: Array | None, action: Array) -> tuple[Array, Array, Info]:
        """Rewards [n], terminations [n] and infos after a step in which `position` changed by `move`."""
        raise NotImplementedError

    def reset_info(self, d: SimpleNamespace) -> Info:
        return {}


class PlanarRunner(Task):
    """HalfCheetah, Hopper and Walker2d: forward velocity of the root joint, less control cost."""

    pays_falls = False  # whether the reward for survival is paid in the step of a fall

    def position(self, d):
        return d.qpos[:, 0].copy()

    def observe(self, d):
        return np.concatenate([d.qpos[:, 1 * self.p.exclude_current_positions_from_observation :], self.velocity(d)], 1)

    def velocity(self, d):
        return np.clip(d.qvel, -10, 10)

    def healthy(self, d) -> Array:
        z, angle = d.qpos[:, 1], d.qpos[:, 2]
        (min_z, max_z), (min_angle, max_angle) = self.p.healthy_z_range, self.p.healthy_angle_range
        return (min_z < z) & (z < max_z) & (min_angle < angle) & (angle < max_angle)

    def outcome(self, d, move, action):
        x_velocity = move / self.dt
        healthy = self.healthy(d)
        forward = self.p.forward_reward_weight * x_velocity
        survive = (healthy | (self.pays_falls & self.p.terminate_when_unhealthy)) * self.p.healthy_reward
        control = self.p.ctrl_cost_weight * sum_of_squares(action)
        info = self.reset_info(d) | {
            "x_velocity": x_velocity,
            "reward_forward": forward,
            "reward_ctrl": -control,
            "reward_survive": survive,
        }
        return forward + survive - control, ~healthy & self.p.terminate_when_unhealthy, info

    def reset_info(self, d):
        return {
            "x_position": d.qpos[:, 0].copy(),
            "z_distance_from_origin": d.qpos[:, 1] - self.init_qpos[1],
        }


class Walker2d(PlanarRunner):
    pass


class Hopper(PlanarRunner):
    def healthy(self, d):
        low, high = self.p.healthy_state_range
        state = np.concatenate([d.qpos, d.qvel], 1)[:, 2:]
        return ((low < state) & (state < high)).all(1) & super().healthy(d)


class HalfCheetah(PlanarRunner):
    gaussian_velocity = True

    def velocity(self, d):
        return d.qvel

    def outcome(self, d, move, action):
        x_velocity = move / self.dt
        forward = self.p.forward_reward_weight * x_velocity
        control = self.p.ctrl_cost_weight * sum_of_squares(action)
        info = self.reset_info(d) | {"x_velocity": x_velocity, "reward_forward": forward, "reward_ctrl": -control}
        return forward - control, np.zeros(len(forward), bool), info

    def reset_info(self, d):
        return {"x_position": d.qpos[:, 0].copy()}


class FormerRunner(PlanarRunner):
    """The v4 of Hopper and Walker2d, which D4RL's agents are evaluated in; Walker2d's feet differ by its model."""

    pays_falls = True

    def outcome(self, d, move, action):
        reward, terminated, info = super().outcome(d, move, action)
        return reward, terminated, {"x_position": d.qpos[:, 0].copy(), "x_velocity": info["x_velocity"]}

    def reset_info(self, d):
        return {}


class FormerHopper(FormerRunner, Hopper):
    pass


class FormerWalker2d(FormerRunner, Walker2d):
    pass


class Swimmer(Task):
    def position(self, d):
        return d.qpos[:, :2].copy()

    def observe(self, d):
        return np.concatenate([d.qpos[:, 2 * self.p.exclude_current_positions_from_observation :], d.qvel], 1)

    def outcome(self, d, move, action):
        velocity = move / self.dt
        forward = self.p.forward_reward_weight * velocity[:, 0]
        control = self.p.ctrl_cost_weight * sum_of_squares(action)
        info = self.reset_info(d) | {
            "x_velocity": velocity[:, 0],
            "y_velocity": velocity[:, 1],
            "reward_forward": forward,
            "reward_ctrl": -control,
        }
        return forward - control, np.zeros(len(forward), bool), info

    def reset_info(self, d):
        return {
            "x_position": d.qpos[:, 0].copy(),
            "y_position": d.qpos[:, 1].copy(),
            "distance_from_origin": norm(d.qpos[:, :2]),
        }


class Ant(Task):
    fields = ("qpos", "qvel", "xpos", "cfrc_ext")
    gaussian_velocity = True

    def __init__(self, env, options):
        super().__init__(env, options)
        self.body = env.data.body(self.p.main_body).id

    def position(self, d):
        return d.xpos[:, self.body, :2].copy()

    def contact_forces(self, d) -> Array:
        return np.clip(d.cfrc_ext, *self.p.contact_force_range)

    def observe(self, d):
        parts = [d.qpos[:, 2 * self.p.exclude_current_positions_from_observation :], d.qvel]
        if self.p.include_cfrc_ext_in_observation:
            parts.append(self.contact_forces(d)[:, 1:].reshape(len(d.qpos), -1))
        return np.concatenate(parts, 1)

    def outcome(self, d, move, action):
        velocity = move / self.dt
        low, high = self.p.healthy_z_range
        finite = np.isfinite(d.qpos).all(1) & np.isfinite(d.qvel).all(1)
        healthy = finite & (low <= d.qpos[:, 2]) & (d.qpos[:, 2] <= high)
        forward = velocity[:, 0] * self.p.forward_reward_weight
        survive = healthy * self.p.healthy_reward
        control = self.p.ctrl_cost_weight * sum_of_squares(action)
        contact = self.p.contact_cost_weight * sum_of_squares(self.contact_forces(d))
        info = self.reset_info(d) | {
            "x_velocity": velocity[:, 0],
            "y_velocity": velocity[:, 1],
            "reward_forward": forward,
            "reward_ctrl": -control,
            "reward_contact": -contact,
            "reward_survive": survive,
        }
        reward = forward + survive - (control + contact)
        return reward, ~healthy & self.p.terminate_when_unhealthy, info

    def reset_info(self, d):
        return {
            "x_position": d.qpos[:, 0].copy(),
            "y_position": d.qpos[:, 1].copy(),
            "distance_from_origin": norm(d.qpos[:, :2]),
        }


class HumanoidBody(Task):
    """What Humanoid and HumanoidStandup share: their observation and tendon infos."""

    fields: tuple[str, ...] = (
        "qpos",
        "qvel",
        "cinert",
        "cvel",
        "qfrc_actuator",
        "cfrc_ext",
        "ctrl",
        "ten_length",
        "ten_velocity",
    )

    def observe(self, d):
        n, p = len(d.qpos), self.p
        parts = [d.qpos[:, 2 * p.exclude_current_positions_from_observation :], d.qvel]
        if p.include_cinert_in_observation:
            parts.append(d.cinert[:, 1:].reshape(n, -1))
        if p.include_cvel_in_observation:
            parts.append(d.cvel[:, 1:].reshape(n, -1))
        if p.include_qfrc_actuator_in_observation:
            parts.append(d.qfrc_actuator[:, 6:])
        if p.include_cfrc_ext_in_observation:
            parts.append(d.cfrc_ext[:, 1:].reshape(n, -1))
        return np.concatenate(parts, 1)

    def reset_info(self, d):
        return {
            "x_position": d.qpos[:, 0].copy(),
            "y_position": d.qpos[:, 1].copy(),
            "tendon_length": d.ten_length.copy(),
            "tendon_velocity": d.ten_velocity.copy(),
        }


class Humanoid(HumanoidBody):
    fields: tuple[str, ...] = (*HumanoidBody.fields, "xipos")

    def position(self, d):
        # one einsum per environment: a batched one adds the bodies up in another order
        mass = self.model.body_mass
        return np.stack([(np.einsum("b,bj->j", mass, x) / mass.sum())[:2] for x in d.xipos])

    def outcome(self, d, move, action):
        velocity = move / self.dt
        low, high = self.p.healthy_z_range
        healthy = (low < d.qpos[:, 2]) & (d.qpos[:, 2] < high)
        forward = self.p.forward_reward_weight * velocity[:, 0]
        survive = healthy * self.p.healthy_reward
        control = self.p.ctrl_cost_weight * sum_of_squares(d.ctrl)
        contact = np.clip(self.p.contact_cost_weight * sum_of_squares(d.cfrc_ext), *self.p.contact_cost_range)
        info = self.reset_info(d) | {
            "x_velocity": velocity[:, 0],
            "y_velocity": velocity[:, 1],
            "reward_survive": survive,
            "reward_forward": forward,
            "reward_ctrl": -control,
            "reward_contact": -contact,
        }
        reward = forward + survive - (control + contact)
        return reward, ~healthy & self.p.terminate_when_unhealthy, info

    def reset_info(self, d):
        return super().reset_info(d) | {"distance_from_origin": norm(d.qpos[:, :2])}


class HumanoidStandup(HumanoidBody):
    def outcome(self, d, move, action):
        up = (d.qpos[:, 2] - 0) / self.model.opt.timestep
        control = self.p.ctrl_cost_weight * sum_of_squares(d.ctrl)
        impact = np.clip(self.p.impact_cost_weight * sum_of_squares(d.cfrc_ext), *self.p.impact_cost_range)
        info = self.reset_info(d) | {"reward_linup": up, "reward_quadctrl": -control, "reward_impact": -impact}
        return up - control - impact + 1, np.zeros(len(up), bool), info

    def reset_info(self, d):
        return super().reset_info(d) | {"z_distance_from_origin": d.qpos[:, 2] - self.init_qpos[2]}


class BodyDistance(Task):
    """Reacher and Pusher: distances between bodies."""

    fields = ("qpos", "qvel", "xpos")
    bodies: tuple[str, ...]

    def __init__(self, env, options):
        super().__init__(env, options)
        self.ids = [env.data.body(name).id for name in self.bodies]

    def places(self, d) -> list[Array]:
        """World positions [n, 3] of `bodies`."""
        return [d.xpos[:, i] for i in self.ids]


class Reacher(BodyDistance):
    bodies = ("fingertip", "target")

    def initial_state(self, rng):
        qpos = rng.uniform(low=-0.1, high=0.1, size=self.model.nq) + self.init_qpos
        while True:
            goal = rng.uniform(low=-0.2, high=0.2, size=2)
            if np.linalg.norm(goal) < 0.2:
                break
        qpos[-2:] = goal
        qvel = self.init_qvel + rng.uniform(low=-0.005, high=0.005, size=self.model.nv)
        qvel[-2:] = 0
        return qpos, qvel

    def observe(self, d):
        theta = d.qpos[:, :2]
        fingertip, target = self.places(d)
        parts = [np.cos(theta), np.sin(theta), d.qpos[:, 2:], d.qvel[:, :2], (fingertip - target)[:, :2]]
        return np.concatenate(parts, 1)

    def outcome(self, d, move, action):
        fingertip, target = self.places(d)
        distance = -norm(fingertip - target) * self.p.reward_dist_weight
        control = -sum_of_squares(action) * self.p.reward_control_weight
        info = {"reward_dist": distance, "reward_ctrl": control}
        return distance + control, np.zeros(len(distance), bool), info


class Pusher(BodyDistance):
    bodies = ("tips_arm", "object", "goal")

    def initial_state(self, rng):
        qpos = self.init_qpos.copy()
        while True:
            cylinder = np.concatenate([rng.uniform(low=-0.3, high=0, size=1), rng.uniform(low=-0.2, high=0.2, size=1)])
            if np.linalg.norm(cylinder) > 0.17:
                break
        qpos[-4:-2] = cylinder
        qpos[-2:] = 0
        qvel = self.init_qvel + rng.uniform(low=-0.005, high=0.005, size=self.model.nv)
        qvel[-4:] = 0
        return qpos, qvel

    def observe(self, d):
        return np.concatenate([d.qpos[:, :7], d.qvel[:, :7], *self.places(d)], 1)

    def outcome(self, d, move, action):
        tip, thing, goal = self.places(d)
        near = -norm(thing - tip) * self.p.reward_near_weight
        distance = -norm(thing - goal) * self.p.reward_dist_weight
        control = -sum_of_squares(action) * self.p.reward_control_weight
        info = {"reward_dist": distance, "reward_ctrl": control, "reward_near": near}
        return distance + control + near, np.zeros(len(near), bool), info


class InvertedPendulum(Task):
    def observe(self, d):
        return np.concatenate([d.qpos, d.qvel], 1)

    def outcome(self, d, move, action):
        obs = self.observe(d)
        terminated = ~np.isfinite(obs).all(1) | (np.abs(obs[:, 1]) > 0.2)
        reward = (~terminated).astype(int)
        return reward, terminated, {"reward_survive": reward}


class InvertedDoublePendulum(Task):
    fields = ("qpos", "qvel", "qfrc_constraint", "site_xpos")
    gaussian_velocity = True

    def observe(self, d):
        link, force = d.qpos[:, 1:], d.qfrc_constraint
        parts = [d.qpos[:, :1], np.sin(link), np.cos(link), np.clip(d.qvel, -10, 10), np.clip(force, -10, 10)[:, :1]]
        return np.concatenate(parts, 1)

    def outcome(self, d, move, action):
        # scalar powers, as in the original: NumPy's array power of 2 rounds differently
        tips, joints = d.site_xpos[:, 0], d.qvel[:, 1:3]
        distance = np.array([0.01 * x**2 + (y - 2) ** 2 for x, _, y in tips])
        velocity = np.array([1e-3 * v1**2 + 5e-3 * v2**2 for v1, v2 in joints])
        terminated = tips[:, 2] <= 1
        alive = self.p.healthy_reward * (~terminated).astype(int)
        info = {"reward_survive": alive, "distance_penalty": -distance, "velocity_penalty": -velocity}
        return alive - distance - velocity, terminated, info


TASKS: dict[str, type[Task]] = {
    f"{task.__name__}-v5": task
    for task in (
        HalfCheetah, Hopper, Walker2d, Ant, Humanoid, HumanoidStandup, Swimmer, Reacher, Pusher, InvertedPendulum,
        InvertedDoublePendulum,
    )
}  # fmt: skip
TASKS |= {"Hopper-v4": FormerHopper, "Walker2d-v4": FormerWalker2d}


class Physics:
    """One MjData per environment, stepped on a thread pool, with the fields that a task reads as arrays [n, …]."""

    def __init__(self, model: mujoco.MjModel, num_envs: int, fields: Sequence[str], frame_skip: int, threads: int):
        self.model, self.frame_skip = model, frame_skip
        self.data = [mujoco.MjData(model) for _ in range(num_envs)]
        # cfrc_ext is not part of mj_step: Gymnasium asks for it after every step, and so only where it is read
        self.contact_forces = "cfrc_ext" in fields
        self.control = [data.ctrl for data in self.data]
        self.sources = {name: [getattr(data, name) for data in self.data] for name in fields}
        self.fields = SimpleNamespace(**{name: np.stack(views) for name, views in self.sources.items()})
        self.work: SimpleQueue[Iterator[int] | None] = SimpleQueue()
        self.finished: SimpleQueue[Exception | None] = SimpleQueue()
        self.helpers = [Thread(target=self._help, name="mujoco", daemon=True) for _ in range(threads - 1)]
        for helper in self.helpers:
            helper.start()

    def step(self, action: Array, ids: Array) -> None:
        """Advances the environments `ids` by one step of their task with `action` [n, A]."""
        for i in ids:
            self.control[i][:] = action[i]
        left = iter(ids)  # each thread takes the next one, whichever is free first
        helpers = min(len(self.helpers), len(ids) - 1)
        for _ in range(helpers):
            self.work.put(left)
        errors = [self._advance(left), *(self.finished.get() for _ in range(helpers))]
        for error in errors:
            if error is not None:
                raise error
        self.read(ids)

    def _help(self) -> None:
        """A helper thread's life. Two queues are quicker than an executor's futures."""
        while (left := self.work.get()) is not None:
            self.finished.put(self._advance(left))

    def close(self) -> None:
        for _ in self.helpers:
            self.work.put(None)

    def _advance(self, ids: Iterator[int]) -> Exception | None:
        """Steps environments until none is left; an error is returned, so that every thread reports once a step."""
        model, data, substeps = self.model, self.data, self.frame_skip
        try:
            for i in ids:
                mujoco.mj_step(model, data[i], substeps)
                if self.contact_forces:
                    mujoco.mj_rnePostConstraint(model, data[i])
        except Exception as error:
            return error
        return None

    def reset(self, i: int, qpos: Array, qvel: Array) -> None:
        data = self.data[i]
        mujoco.mj_resetData(self.model, data)
        data.qpos[:], data.qvel[:] = qpos, qvel
        mujoco.mj_forward(self.model, data)

    def read(self, ids: Array) -> None:
        """Copies the fields of the environments `ids` from MuJoCo's memory."""
        whole = len(ids) == len(self.data)
        for name, views in self.sources.items():
            array = getattr(self.fields, name)
            if whole and array.size:
                np.stack(views, out=array)
            else:
                for i in ids:
                    array[i] = views[i]

    def rows(self, ids: Array) -> SimpleNamespace:
        """The fields of some environments."""
        if len(ids) == len(self.data):
            return self.fields
        return SimpleNamespace(**{name: array[ids] for name, array in vars(self.fields).items()})


class MujocoVectorEnv(VectorEnv):
    """A `gymnasium.vector.VectorEnv` of one of `TASKS`.

    Takes the options of the task's Gymnasium class (`ctrl_cost_weight`, `reset_noise_scale`, `xml_file`, …) and
    `max_episode_steps` (-1: none). Refuses rendering, which Gymnasium's own environments do well.

    All three autoreset modes behave as in `gymnasium.vector.SyncVectorEnv`, but for one: with DISABLED, a finished
    environment may be stepped with the others; it then stays as it is, with reward 0, until it is reset.

    `threads` defaults to the machine's cores, at most one for two environments.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        *,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        threads: int | None = None,
        **options: Any,
    ):
        if env_id not in TASKS:
            raise ValueError(f"{env_id} has no batched version; there is one for {', '.join(TASKS)}")
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        if refused := sorted(RENDERING & set(options)):
            raise ValueError(f"{refused[0]} is not supported by the batched {env_id}: render with gymnasium.make")
        constructor = inspect.signature(load_env_creator(str(gym.spec(env_id).entry_point)))
        defaults = {n: p.default for n, p in constructor.parameters.items() if p.kind is not p.VAR_KEYWORD}
        if unknown := sorted(set(options) - set(defaults)):
            raise ValueError(
                f"{env_id} has no option {unknown[0]}; it has {', '.join(sorted(set(defaults) - RENDERING))}"
            )
        with quiet_mujoco(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of v4
            env: Any = gym.make(env_id, max_episode_steps=max_episode_steps, **options).unwrapped
        limit = gym.spec(env_id).max_episode_steps if max_episode_steps is None else max_episode_steps
        self.max_episode_steps = np.inf if limit in (None, -1) else limit

        self.spec, self.num_envs = gym.spec(env_id), num_envs
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**env.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

        self.task = TASKS[env_id](env, defaults | options)
        threads = max(1, min(threads or os.cpu_count() or 1, num_envs // 2))
        self.physics = Physics(env.model, num_envs, self.task.fields, env.frame_skip, threads)
        self.generators: list[np.random.Generator] = [None] * num_envs  # type: ignore[list-item]
        self.everyone = np.arange(num_envs)
        self.elapsed = np.zeros(num_envs, np.int64)
        self.done = np.zeros(num_envs, bool)
        self.before = self.task.position(self.physics.fields)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Starts new episodes everywhere, or where `options["reset_mask"]` [num_envs] holds; as in Gymnasium."""
        if seed is None:
            seeds: list[int | None] = [None] * self.num_envs
        elif isinstance(seed, (int, np.integer)):
            seeds = [int(seed) + i for i in range(self.num_envs)]
        else:
            seeds = list(seed)
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed needs one entry for each of the {self.num_envs} environments, got {len(seeds)}")
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        if getattr(mask, "dtype", None) != np.bool_ or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"reset_mask must be a boolean array of shape ({self.num_envs},) with a True in it")
        ids = np.flatnonzero(mask)
        for i in ids:
            if seeds[i] is not None or self.generators[i] is None:
                self.generators[i] = seeding.np_random(seeds[i])[0]
        self._start_episodes(ids)
        infos: dict[str, Any] = {}
        self._scatter(infos, self.task.reset_info(self.physics.rows(ids)), ids)
        return self.task.observe(self.physics.fields), infos

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        actions = np.asarray(actions)
        if actions.shape != self.action_space.shape:
            raise ValueError(f"actions must have shape {self.action_space.shape}, got {actions.shape}")
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        resetting = self.done
        if self.autoreset_mode == AutoresetMode.SAME_STEP or not resetting.any():
            active = self.everyone
        else:
            active = np.flatnonzero(~resetting)

        infos: dict[str, Any] = {}
        info: Info = {}
        if len(active):
            self.physics.step(actions, active)
            rows = self.physics.rows(active)
            move = None
            if self.before is not None:
                after = self.task.position(rows)
                move = after - self.before[active]
                self.before[active] = after
            rewards[active], terminated[active], info = self.task.outcome(rows, move, actions[active])
            self.elapsed[active] += 1
            truncated[active] = self.elapsed[active] >= self.max_episode_steps
        done = terminated | truncated

        if self.autoreset_mode == AutoresetMode.SAME_STEP and done.any():
            ids = np.flatnonzero(done)
            final = self.task.observe(self.physics.rows(ids))
            infos["final_obs"] = np.full(self.num_envs, None, object)
            for i, obs in zip(ids, final, strict=True):
                infos["final_obs"][i] = obs
            infos["_final_obs"], infos["_final_info"] = done.copy(), done.copy()
            infos["final_info"] = {}
            self._scatter(infos["final_info"], {key: value[ids] for key, value in info.items()}, ids)
            going = np.flatnonzero(~done)
            self._scatter(infos, {key: value[going] for key, value in info.items()}, going)
            self._start_episodes(ids)
            self._scatter(infos, self.task.reset_info(self.physics.rows(ids)), ids)
            self.done[:] = False
        else:
            self._scatter(infos, info, active)
            if self.autoreset_mode == AutoresetMode.NEXT_STEP and len(active) < self.num_envs:
                ids = np.flatnonzero(resetting)
                self._start_episodes(ids)
                self._scatter(infos, self.task.reset_info(self.physics.rows(ids)), ids)
            self.done = done | resetting if self.autoreset_mode == AutoresetMode.DISABLED else done
        return self.task.observe(self.physics.fields), rewards, terminated, truncated, infos

    def _start_episodes(self, ids: Array) -> None:
        for i in ids:
            self.physics.reset(i, *self.task.initial_state(self.generators[i]))
        self.physics.read(ids)
        self.elapsed[ids], self.done[ids] = 0, False
        if self.before is not None:
            self.before[ids] = self.task.position(self.physics.rows(ids))

    def _scatter(self, infos: dict[str, Any], values: Info, ids: Array) -> None:
        """Puts the values [n, …] of the environments `ids` into the batch's infos, as Gymnasium lays them out."""
        if not len(ids):
            return
        for key, value in values.items():
            if len(ids) == self.num_envs:
                infos[key], infos[f"_{key}"] = value, np.ones(self.num_envs, bool)
                continue
            if key not in infos:
                infos[key] = np.zeros((self.num_envs, *value.shape[1:]), value.dtype)
                infos[f"_{key}"] = np.zeros(self.num_envs, bool)
            infos[key][ids], infos[f"_{key}"][ids] = value, True

    def get_state(self) -> dict[str, Array]:
        """Everything that a bitwise continuation needs, as arrays."""
        size = mujoco.mj_stateSize(self.physics.model, STATE)
        physics = np.empty((self.num_envs, size))
        for row, data in zip(physics, self.physics.data, strict=True):
            mujoco.mj_getState(self.physics.model, data, row, STATE)
        generators = json.dumps([g and g.bit_generator.state for g in self.generators])
        state = {f"field_{name}": array.copy() for name, array in vars(self.physics.fields).items()}
        state |= {"physics": physics, "elapsed": self.elapsed.copy(), "done": self.done.copy()}
        state["generators"] = np.frombuffer(generators.encode(), np.uint8).copy()
        return state

    def set_state(self, state: dict[str, Array]) -> None:
        """Continues from a state of `get_state` of an environment made with the same arguments."""
        for row, data in zip(state["physics"], self.physics.data, strict=True):
            mujoco.mj_setState(self.physics.model, data, row, STATE)
        for name, array in vars(self.physics.fields).items():
            array[...] = state[f"field_{name}"]
        self.elapsed[:], self.done = state["elapsed"], state["done"].copy()
        self.before = self.task.position(self.physics.fields)
        for i, saved in enumerate(json.loads(state["generators"].tobytes().decode())):
            if saved is not None:
                self.generators[i] = np.random.Generator(np.random.PCG64())
                self.generators[i].bit_generator.state = saved

    def close_extras(self, **kwargs: Any) -> None:
        self.physics.close()
