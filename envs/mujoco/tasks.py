"""The MuJoCo tasks: where an episode starts, what is observed and rewarded, and when a fall ends an episode.

The formulas are those of `gymnasium/envs/mujoco/*_v5.py`, for arrays with the environment first. Where the order of
floating-point operations matters, it is that of the original; a comment says so. Constants, such as the weight of the
control cost, are Gymnasium's defaults or the options that were given, and have the names that they have there.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Info = dict[str, Array]


def norm(vectors: Array) -> Array:
    """Euclidean norms [n] of vectors [n, k], by the same dot product as `np.linalg.norm` of one vector."""
    return np.sqrt(np.vecdot(vectors, vectors))


def sum_of_squares(values: Array) -> Array:
    """Sums of squares [n] of values [n, …], each added up in the order of `np.sum(np.square(values[i]))`."""
    return np.square(values).reshape(len(values), -1).sum(-1)


class MujocoTask:
    """The formulas of one task.

    In all methods, `d` holds the fields of MuJoCo's MjData that are named in `fields`, each [n, …]. `p` holds the
    arguments of the task's constructor in Gymnasium, such as `p.ctrl_cost_weight`.
    """

    fields: tuple[str, ...] = ("qpos", "qvel")
    gaussian_velocity = False  # whether initial velocities have normal noise instead of uniform noise

    def __init__(self, env: Any, options: dict[str, Any]):
        self.model, self.dt = env.model, env.dt
        self.init_qpos, self.init_qvel = env.init_qpos.copy(), env.init_qvel.copy()
        self.p = SimpleNamespace(**options)

    def initial_state(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """(qpos, qvel) of one environment at the start of an episode."""
        scale = self.p.reset_noise_scale
        qpos = self.init_qpos + rng.uniform(low=-scale, high=scale, size=self.model.nq)
        if self.gaussian_velocity:
            return qpos, self.init_qvel + scale * rng.standard_normal(self.model.nv)
        return qpos, self.init_qvel + rng.uniform(low=-scale, high=scale, size=self.model.nv)

    def position(self, d: SimpleNamespace) -> Array | None:
        """The position [n, …] whose change during a step is rewarded; None if the task rewards no movement."""
        return None

    def observe(self, d: SimpleNamespace) -> Array:
        """Observations [n, O]."""
        raise NotImplementedError

    def outcome(self, d: SimpleNamespace, move: Array | None, action: Array) -> tuple[Array, Array, Info]:
        """Rewards [n], terminations [n] and infos of a step in which `position` changed by `move`."""
        raise NotImplementedError

    def reset_info(self, d: SimpleNamespace) -> Info:
        """Infos of the first observation of an episode."""
        return {}


class PlanarRunner(MujocoTask):
    """HalfCheetah, Hopper and Walker2d: rewarded for forward velocity and survival, less a control cost.

    They observe all joints but the forward position, and an episode ends when the body falls.
    """

    pays_falls = False  # whether the step of a fall, too, is rewarded for survival

    def position(self, d):
        return d.qpos[:, 0].copy()

    def observe(self, d):
        return np.concatenate([d.qpos[:, 1 * self.p.exclude_current_positions_from_observation :], self.velocity(d)], 1)

    def velocity(self, d) -> Array:
        """Joint velocities as they are observed, [n, V]."""
        return np.clip(d.qvel, -10, 10)

    def healthy(self, d) -> Array:
        """Whether the body stands, [n]."""
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
    """Falls where the torso's height or angle leaves its range."""


class Hopper(PlanarRunner):
    """Falls where the torso's height or angle, or any other value of the state, leaves its range."""

    def healthy(self, d):
        low, high = self.p.healthy_state_range
        state = np.concatenate([d.qpos, d.qvel], 1)[:, 2:]
        return ((low < state) & (state < high)).all(1) & super().healthy(d)


class HalfCheetah(PlanarRunner):
    """Cannot fall, so there is no reward for survival; velocities are observed unclipped."""

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


class RunnerV4(PlanarRunner):
    """The v4 of Hopper and Walker2d, in which agents of D4RL's data are evaluated.

    The step of a fall is rewarded for survival, and infos are fewer. Walker2d's feet differ too: by its model's file.
    """

    pays_falls = True

    def outcome(self, d, move, action):
        reward, terminated, info = super().outcome(d, move, action)
        return reward, terminated, {"x_position": d.qpos[:, 0].copy(), "x_velocity": info["x_velocity"]}

    def reset_info(self, d):
        return {}


class HopperV4(RunnerV4, Hopper):
    """Hopper-v4."""


class Walker2dV4(RunnerV4, Walker2d):
    """Walker2d-v4."""


class Swimmer(MujocoTask):
    """Rewarded for forward velocity, less a control cost; observes all joints but the position; never terminates."""

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


class Ant(MujocoTask):
    """Rewarded for forward velocity and survival, less costs of control and of contact forces.

    It observes joints and contact forces, and an episode ends where the torso's height leaves its range.
    """

    fields = ("qpos", "qvel", "xpos", "cfrc_ext")
    gaussian_velocity = True
    reset_info: Any = Swimmer.reset_info

    def __init__(self, env, options):
        super().__init__(env, options)
        self.body = env.data.body(self.p.main_body).id

    def position(self, d):
        return d.xpos[:, self.body, :2].copy()

    def contact_forces(self, d) -> Array:
        """Clipped external forces on each body, [n, bodies, 6]."""
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


class HumanoidBody(MujocoTask):
    """The part that Humanoid and HumanoidStandup have in common: their observations, and infos on tendons.

    They observe joints, inertias, velocities, actuator forces and contact forces of all bodies.
    """

    fields: tuple[str, ...] = (
        "qpos", "qvel", "cinert", "cvel", "qfrc_actuator", "cfrc_ext", "ctrl", "ten_length", "ten_velocity",
    )  # fmt: skip

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
    """Rewarded for the forward velocity of its centre of mass and for survival, less costs of control and contact.

    An episode ends where the torso's height leaves its range.
    """

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
    """Rewarded for the height of the torso, less costs of control and impact; never terminates."""

    def outcome(self, d, move, action):
        up = (d.qpos[:, 2] - 0) / self.model.opt.timestep
        control = self.p.ctrl_cost_weight * sum_of_squares(d.ctrl)
        impact = np.clip(self.p.impact_cost_weight * sum_of_squares(d.cfrc_ext), *self.p.impact_cost_range)
        info = self.reset_info(d) | {"reward_linup": up, "reward_quadctrl": -control, "reward_impact": -impact}
        return up - control - impact + 1, np.zeros(len(up), bool), info

    def reset_info(self, d):
        return super().reset_info(d) | {"z_distance_from_origin": d.qpos[:, 2] - self.init_qpos[2]}


class BodyDistance(MujocoTask):
    """Reacher and Pusher: rewarded for small distances between bodies, less a control cost; they never terminate."""

    fields = ("qpos", "qvel", "xpos")
    bodies: tuple[str, ...]

    def __init__(self, env, options):
        super().__init__(env, options)
        self.ids = [env.data.body(name).id for name in self.bodies]

    def places(self, d) -> list[Array]:
        """Positions of `bodies` in the world, each [n, 3]."""
        return [d.xpos[:, i] for i in self.ids]


class Reacher(BodyDistance):
    """The fingertip of a two-joint arm is to reach a target, which lies elsewhere in each episode."""

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
    """The tip of an arm is to push an object, which lies elsewhere in each episode, to a goal."""

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


class InvertedPendulum(MujocoTask):
    """Rewarded with 1 in each step until the pole leans by more than 0.2 rad, which ends the episode."""

    def observe(self, d):
        return np.concatenate([d.qpos, d.qvel], 1)

    def outcome(self, d, move, action):
        obs = self.observe(d)
        terminated = ~np.isfinite(obs).all(1) | (np.abs(obs[:, 1]) > 0.2)
        reward = (~terminated).astype(int)
        return reward, terminated, {"reward_survive": reward}


class InvertedDoublePendulum(MujocoTask):
    """Rewarded for survival, less penalties of the tip's distance from upright and of velocities.

    An episode ends where the tip's height is at most 1.
    """

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


TASKS: dict[str, type[MujocoTask]] = {
    f"{task.__name__}-v5": task
    for task in (
        HalfCheetah, Hopper, Walker2d, Ant, Humanoid, HumanoidStandup, Swimmer, Reacher, Pusher, InvertedPendulum,
        InvertedDoublePendulum,
    )
}  # fmt: skip
TASKS |= {"Hopper-v4": HopperV4, "Walker2d-v4": Walker2dV4}
