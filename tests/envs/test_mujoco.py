"""The batched MuJoCo tasks against Gymnasium's own, bit for bit."""

import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envs import make_vec
from envs.mujoco import TASKS, MujocoVectorEnv, quiet_mujoco

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


def sync(env_id: str, num_envs: int, mode: AutoresetMode, **kwargs) -> SyncVectorEnv:
    with quiet_mujoco():
        return SyncVectorEnv([lambda: gym.make(env_id, **kwargs)] * num_envs, autoreset_mode=mode)


def actions(space: gym.spaces.Box, kind: str, rng: np.random.Generator) -> np.ndarray:
    if kind == "random":
        return rng.uniform(space.low, space.high).astype(space.dtype)
    corners = np.where(rng.random(space.shape) < 0.5, space.low, space.high)
    return (corners * rng.choice([1.0, 3.0])).astype(space.dtype)  # also far outside the bounds, which MuJoCo clamps


def assert_same(ours, theirs, place="infos"):
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), place
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{place}[{key}]")
    elif theirs.dtype == object:
        assert [a is None for a in ours] == [b is None for b in theirs], place
        for a, b in zip(ours, theirs, strict=True):
            if b is not None:
                assert_same(a, b, place)
    else:
        assert ours.dtype == theirs.dtype, place
        assert ours.shape == theirs.shape, place
        assert np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f"), f"{place}: {ours} {theirs}"


def roll(env_id: str, num_envs: int, mode: AutoresetMode, kind: str, seed: int, steps: int, **kwargs) -> int:
    """Steps both side by side, compares everything, and returns the number of episode ends."""
    ours, theirs = make_vec(env_id, num_envs, autoreset_mode=mode, **kwargs), sync(env_id, num_envs, mode, **kwargs)
    rng, seeds, ends = np.random.default_rng(seed), list(range(seed, seed + num_envs)), 0
    assert isinstance(ours, MujocoVectorEnv)
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata["autoreset_mode"] == mode
    for a, b in zip(ours.reset(seed=seeds), theirs.reset(seed=seeds), strict=True):
        assert_same(a, b)
    for _ in range(steps):
        action = actions(ours.action_space, kind, rng)
        ours_step, theirs_step = ours.step(action), theirs.step(action)
        for name, a, b in zip(
            ("obs", "reward", "terminated", "truncated", "infos"), ours_step, theirs_step, strict=True
        ):
            assert_same(a, b, name)
        ends += int((ours_step[2] | ours_step[3]).sum())
    ours.close()
    theirs.close()
    return ends


@pytest.mark.parametrize("kind", ["random", "extreme"])
@pytest.mark.parametrize("env_id", TASKS)
def test_equals_gymnasium_bitwise(env_id, kind):
    for seed, mode in enumerate(MODES):
        assert roll(env_id, 3, mode, kind, seed, steps=150, max_episode_steps=45) >= 9


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Hopper-v5", "Pusher-v5"])
def test_default_time_limit_is_gymnasiums(env_id):
    limit = gym.spec(env_id).max_episode_steps
    assert roll(env_id, 1, AutoresetMode.NEXT_STEP, "random", 5, steps=limit + 2) >= 1


OPTIONS = {
    "HalfCheetah-v5": {
        "forward_reward_weight": 2.0,
        "ctrl_cost_weight": 0.3,
        "reset_noise_scale": 0.2,
        "frame_skip": 3,
    },
    "Hopper-v5": {"terminate_when_unhealthy": False, "healthy_reward": 2, "healthy_state_range": (-5.0, 5.0)},
    "Walker2d-v5": {"healthy_angle_range": (-0.3, 0.3), "exclude_current_positions_from_observation": False},
    "Ant-v5": {"include_cfrc_ext_in_observation": False, "contact_force_range": (-0.5, 0.5), "main_body": "torso"},
    "Humanoid-v5": {"include_cvel_in_observation": False, "contact_cost_range": (0.0, 1e-6)},
    "HumanoidStandup-v5": {"uph_cost_weight": 2.0, "impact_cost_weight": 1e-3},
    "Swimmer-v5": {"exclude_current_positions_from_observation": False},
    "Reacher-v5": {"reward_dist_weight": 2.0, "reward_control_weight": 0.5},
    "Pusher-v5": {"reward_near_weight": 1.5},
    "InvertedPendulum-v5": {"reset_noise_scale": 0.15},
    "InvertedDoublePendulum-v5": {"healthy_reward": 3.0},
    "Hopper-v4": {"terminate_when_unhealthy": False, "healthy_reward": 2.0},
    "Walker2d-v4": {"healthy_angle_range": (-0.3, 0.3), "healthy_reward": 2.0},
}


@pytest.mark.parametrize("env_id", TASKS)
def test_options_equal_gymnasiums(env_id):
    mode, options = AutoresetMode.SAME_STEP, OPTIONS[env_id]
    assert roll(env_id, 2, mode, "random", 3, steps=60, max_episode_steps=25, **options) >= 4


def test_after_an_interrupt_steps_wait_for_all_threads(monkeypatch):
    """A report that an interrupted step left behind would end the next one while MuJoCo is at work."""
    venv = make_vec("HalfCheetah-v5", 4, AutoresetMode.DISABLED, threads=2)
    venv.reset(seed=0)
    physics, action = venv.physics, np.zeros(venv.action_space.shape)
    physics.frame_skip = 500
    advance, main = physics._advance, threading.current_thread()

    def interrupted(left):
        if threading.current_thread() is main:
            raise KeyboardInterrupt
        return advance(left)

    monkeypatch.setattr(physics, "_advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        venv.step(action)
    times = [data.time for data in physics.data]
    assert len(set(times)) == 1 and times[0] > 0  # the other thread has ended its work
    monkeypatch.undo()
    physics.step(action, np.arange(4))
    assert [data.time for data in physics.data] == pytest.approx([2 * time for time in times])
    venv.close()


def test_threads_do_not_change_results():
    action = np.random.default_rng(0).uniform(-1, 1, (20, 7, 8)).astype(np.float32)
    results = []
    for threads in (1, 2, 5):
        env = MujocoVectorEnv("Ant-v5", 7, threads=threads)
        env.reset(seed=0)
        results.append([env.step(a)[0] for a in action][-1])
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


@pytest.mark.parametrize("env_id", TASKS)
def test_saved_state_continues_bitwise(env_id):
    env = make_vec(env_id, 3, max_episode_steps=30, autoreset_mode=AutoresetMode.SAME_STEP)
    rng = np.random.default_rng(0)
    plan = [actions(env.action_space, "random", rng) for _ in range(80)]
    env.reset(seed=1)
    for action in plan[:20]:
        env.step(action)
    state = env.get_state()
    expected = [env.step(action) for action in plan[20:]]
    other = make_vec(env_id, 3, max_episode_steps=30, autoreset_mode=AutoresetMode.SAME_STEP)
    other.set_state(state)
    for action, step in zip(plan[20:], expected, strict=True):
        for a, b in zip(other.step(action), step, strict=True):
            assert_same(a, b)


def test_disabled_autoreset_holds_a_finished_environment():
    env = make_vec("Hopper-v5", 2, autoreset_mode=AutoresetMode.DISABLED)
    env.reset(seed=0)
    held = None
    for _ in range(200):
        obs, reward, terminated, _, _ = env.step(np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], np.float32))
        if held is not None:
            assert np.array_equal(obs[0], held) and reward[0] == 0
        elif terminated[0]:
            held = obs[0].copy()
    assert held is not None
    obs, _ = env.reset(options={"reset_mask": np.array([True, False])})
    assert not np.array_equal(obs[0], held)


def test_other_ids_are_gymnasiums():
    env = make_vec("Pendulum-v1", 2, autoreset_mode=AutoresetMode.SAME_STEP)
    assert isinstance(env, SyncVectorEnv) and env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP


@pytest.mark.parametrize(
    ("kwargs", "word"),
    [({"ctrl_cost": 1.0}, "ctrl_cost"), ({"width": 64}, "width"), ({"num_envs": 0}, "num_envs")],
)
def test_bad_options_are_refused_by_name(kwargs, word):
    with pytest.raises(ValueError, match=word):
        make_vec("Hopper-v5", **({"num_envs": 1} | kwargs))


def test_wrong_action_shape_is_refused():
    env = make_vec("Hopper-v5", 2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        env.step(np.zeros((2, 4), np.float32))


def test_loading_a_model_warns_nobody(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    make_vec("HalfCheetah-v5", 1).close()
    assert capfd.readouterr() == ("", "") and not list(tmp_path.iterdir())


def test_an_error_in_a_step_is_raised_and_the_next_step_is_sound(monkeypatch):
    import mujoco

    env, other = MujocoVectorEnv("Hopper-v5", 6, threads=3), MujocoVectorEnv("Hopper-v5", 6, threads=3)
    action, step = np.zeros((6, 3), np.float32), mujoco.mj_step

    def broken(*args):
        raise mujoco.FatalError("broken")

    env.reset(seed=0)
    monkeypatch.setattr(mujoco, "mj_step", broken)
    with pytest.raises(mujoco.FatalError, match="broken"):
        env.step(action)
    monkeypatch.setattr(mujoco, "mj_step", step)
    for e in (env, other):
        e.reset(seed=3)
    for _ in range(20):
        for a, b in zip(env.step(action)[:4], other.step(action)[:4], strict=True):
            assert_same(a, b)
