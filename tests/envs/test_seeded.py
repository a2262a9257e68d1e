"""R x N environments from R seeds."""

from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from envs import SeededEnvs, Task, make_vec
from envs.mujoco import quiet_mujoco


def play(envs: SeededEnvs, steps: int):
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        action = torch.rand(envs.runs, envs.envs_per_run, envs.act_size, generator=generator) * 2 - 1
        yield envs.step(action)


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Pendulum-v1"])
def test_a_seed_is_the_same_whoever_its_neighbours_are(env_id):
    together, alone = SeededEnvs(env_id, [3, 8], 2), SeededEnvs(env_id, [8], 2)
    assert torch.equal(together.obs[1], alone.obs[0])
    action = torch.zeros(2, 2, together.act_size)
    for _ in range(60):
        a, b = together.step(action), alone.step(action[:1])
        assert torch.equal(a.next_obs[1], b.next_obs[0]) and torch.equal(a.reward[1], b.reward[0])


def test_next_obs_is_the_last_of_the_episode_and_obs_the_first_of_the_next():
    envs = SeededEnvs("Hopper-v5", [0, 1], 2)
    ends = 0
    for step in play(envs, 150):
        for run, env in (step.terminated + step.truncated).nonzero().tolist():
            ends += 1
            assert not torch.equal(step.next_obs[run, env], envs.obs[run, env])
            assert step.next_obs[run, env, 0] < 0.7 or step.next_obs[run, env, 1].abs() > 0.2  # it fell
            assert envs.obs[run, env, 0] == pytest.approx(1.25, abs=0.01)  # it stands
        going = (step.terminated + step.truncated) == 0
        assert torch.equal(step.next_obs[going], envs.obs[going])
    assert ends > 4


def test_a_time_limit_truncates_and_does_not_terminate():
    envs = SeededEnvs("HalfCheetah-v5", [0], 1, max_episode_steps=10)
    steps = list(play(envs, 10))
    assert [s.truncated.item() for s in steps] == [0] * 9 + [1]
    assert sum(s.terminated.item() for s in steps) == 0


def test_episode_returns_and_lengths():
    envs = SeededEnvs("Pendulum-v1", [0, 5], 1, max_episode_steps=7)
    totals = torch.zeros(2)
    for k, step in enumerate(play(envs, 21), 1):
        totals += step.reward[:, 0]
        if k % 7:
            assert envs.take_ended() == []
        else:
            ended = envs.take_ended()
            assert [(e.run, e.length) for e in ended] == [(0, 7), (1, 7)]
            assert [e.total for e in ended] == pytest.approx(totals.tolist(), rel=1e-5)
            totals.zero_()


def test_no_episode_of_several_steps_is_lost_and_none_is_given_twice():
    envs, other = (SeededEnvs("Hopper-v5", [0, 1], 2) for _ in range(2))
    one_by_one = []
    for _ in play(other, 120):
        one_by_one += other.take_ended()
    list(play(envs, 120))
    assert envs.take_ended() == one_by_one and len(one_by_one) > 8
    assert envs.take_ended() == []


def test_runs_of_one_seed_see_the_same_episodes():
    envs, alone = SeededEnvs("Hopper-v5", [4, 4, 2], 2), SeededEnvs("Hopper-v5", [4], 2)
    action, ends = torch.ones(3, 2, 3), 0
    for _ in range(60):
        step, other = envs.step(action), alone.step(action[:1])
        for ours, theirs in zip(step[:-1], other[:-1], strict=True):
            assert torch.equal(ours[0], ours[1]) and torch.equal(ours[:1], theirs)
        assert not torch.equal(step.next_obs[0], step.next_obs[2])
        ended = envs.take_ended()
        first, second = ([(e.total, e.length) for e in ended if e.run == run] for run in (0, 1))
        assert first == second == [(e.total, e.length) for e in alone.take_ended()]
        ends += len(first)
    assert ends


class Counter(gym.Env):
    """Counts its steps; an episode has 4."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.array([0.0]), {}

    def step(self, action):
        self.count += 1
        return np.array([float(self.count)]), 1.0, self.count == 4, False, {}


def next_step_counters(num_envs: int, **kwargs) -> VectorEnv:
    return SyncVectorEnv([Counter] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


@pytest.fixture
def registered():
    gym.register("Counter-v0", entry_point=Counter)
    gym.register("CounterVector-v0", vector_entry_point=next_step_counters)
    yield
    for env_id in ("Counter-v0", "CounterVector-v0"):
        del gym.registry[env_id]


@pytest.mark.parametrize(("env_id", "steps"), [("Counter-v0", 12), ("CounterVector-v0", 15)])
def test_both_conventions_of_automatic_reset_give_the_same_transitions(registered, env_id, steps):
    envs = SeededEnvs(env_id, [0, 1], 1)
    seen, ended = [], []
    for step in play(envs, steps):
        if step.valid is None or step.valid[0, 0]:
            seen.append((step.obs[0, 0, 0].item(), step.next_obs[0, 0, 0].item(), step.terminated[0, 0].item()))
        ended += [(e.total, e.length) for e in envs.take_ended() if e.run == 0]
    assert seen == [(0, 1, 0), (1, 2, 0), (2, 3, 0), (3, 4, 1)] * 3
    assert ended == [(4.0, 4)] * 3


def test_steps_that_only_reset_are_refused_where_they_cannot_be_left_out(registered):
    with pytest.raises(ValueError, match="CounterVector-v0 spends a step on every reset"):
        SeededEnvs("CounterVector-v0", [0], every_step_valid=True)
    assert not SeededEnvs("Counter-v0", [0], every_step_valid=True).next_step_reset


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Humanoid-v5"])
def test_restored_environments_go_on_exactly(env_id):
    envs, other = SeededEnvs(env_id, [0, 4], 2), SeededEnvs(env_id, [0, 4], 2)
    list(play(envs, 37))
    list(play(other, 90))  # another history, whose episodes are forgotten
    envs.take_ended()
    other.load_state_dict(envs.state_dict())
    assert torch.equal(envs.obs, other.obs)
    for a, b in zip(play(envs, 80), play(other, 80), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a[:-1], b[:-1], strict=True))
        assert envs.take_ended() == other.take_ended()


@pytest.mark.parametrize(
    ("task", "options"),
    [
        (Task("Pendulum-v1", (3,), 1, False, (-2.0,), (2.0,), 200), {}),
        (Task("Pendulum-v1", (3,), 1, False, (-2.0,), (2.0,), 0), {"max_episode_steps": -1}),
        (Task("CartPole-v1", (4,), 2, True, (), (), 500), {}),
        (Task("CartPole-v1", (4,), 2, True, (), (), 10_000), {"max_episode_steps": 10_000}),
        (Task("HalfCheetah-v5", (17,), 6, False, (-1.0,) * 6, (1.0,) * 6, 1000), {}),
        (Task("HalfCheetah-v5", (17,), 6, False, (-1.0,) * 6, (1.0,) * 6, 7), {"max_episode_steps": 7}),
    ],
)
def test_what_is_known_of_a_task(task, options):
    envs = SeededEnvs(task.env_id, [0], actions="any", **options)
    assert envs.task == task and envs.task.obs_size == envs.obs_size == task.obs_shape[0]
    assert envs.obs.shape == (1, 1, task.obs_shape[0]) and envs.act_size == task.act_size
    assert envs.action_low.tolist() == list(task.low) and envs.action_high.tolist() == list(task.high)


class Echo(gym.Env):
    """Shows the last action, which is one of 5, 6 and 7."""

    observation_space = gym.spaces.Box(0, 10, (1,), np.float64)
    action_space = gym.spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        return np.array([0.0]), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.array([float(action)]), 0.0, False, False, {}


def test_discrete_actions_reach_the_task():
    gym.register("Echo-v0", entry_point=Echo)
    try:
        envs = SeededEnvs("Echo-v0", [0, 1], 2, actions="discrete")
        action = torch.tensor([[0, 1], [2, 0]])
        assert envs.task.act_size == 3
        for sent in (action, action[..., None]):
            step = envs.step(sent)
            assert step.next_obs[..., 0].tolist() == [[5, 6], [7, 5]]
            assert torch.equal(step.action, sent)
    finally:
        del gym.registry["Echo-v0"]


@pytest.mark.parametrize(
    ("env_id", "actions", "message"),
    [
        ("CartPole-v1", "continuous", r"^CartPole-v1 has Discrete actions; this needs continuous ones \(a Box\)$"),
        ("Pendulum-v1", "discrete", r"^Pendulum-v1 has Box actions; this needs a finite number of them \(Discrete\)$"),
    ],
)
def test_actions_of_the_other_kind_are_refused(env_id, actions, message):
    with pytest.raises(ValueError, match=message):
        SeededEnvs(env_id, [0], actions=actions)


def test_a_precision_of_its_own():
    envs, default = SeededEnvs("Pendulum-v1", [0], dtype=torch.float64), SeededEnvs("Pendulum-v1", [0])
    a, b = envs.step(torch.ones(1, 1, 1)), default.step(torch.ones(1, 1, 1))
    for precise, rounded in zip(a[:-1], b[:-1], strict=True):
        assert torch.equal(precise.float(), rounded)
    assert {x.dtype for x in (envs.obs, envs.action_low, a.obs, a.reward, a.next_obs, a.terminated, a.truncated)} == {
        torch.float64
    }
    assert not torch.equal(a.reward, b.reward.double())


def test_restarted_marks_episodes_begun_without_a_step():
    envs, other = SeededEnvs("Hopper-v5", [0], 1, max_episode_steps=2), SeededEnvs("Hopper-v5", [0], 1)
    assert envs.restarted
    envs.send(torch.zeros(1, 1, 3))
    assert envs.restarted
    envs.receive()
    assert not envs.restarted
    envs.step(torch.zeros(1, 1, 3))  # ends the episode: its successor was begun by a step
    assert envs.take_ended() and not envs.restarted
    other.load_state_dict(envs.state_dict())
    assert not other.restarted
    envs.reset("resume", 2)
    assert envs.restarted


class Broken(Counter):
    """Starts with NaN where `at_reset`, and has infinite observations from the second step on."""

    def __init__(self, at_reset: bool):
        self.at_reset = at_reset

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        return obs + np.nan if self.at_reset else obs, info

    def step(self, action):
        obs, *rest = super().step(action)
        return np.array([np.inf]) if self.count > 1 else obs, *rest


@pytest.mark.filterwarnings("ignore:.*not within the observation space")
def test_observations_that_are_not_finite_are_refused_at_a_reset_only():
    gym.register("Broken-v0", entry_point=Broken)
    try:
        with pytest.raises(ValueError, match=r"^Broken-v0 starts with observations that are not finite"):
            SeededEnvs("Broken-v0", [0], at_reset=True)
        steps = list(play(SeededEnvs("Broken-v0", [0], at_reset=False), 6))
        assert steps[2].next_obs.isinf().all()
    finally:
        del gym.registry["Broken-v0"]


class InPlace(Counter):
    """Writes all its observations into one array."""

    array = np.zeros(1)

    def reset(self, *, seed=None, options=None):
        self.array[:], info = super().reset(seed=seed)
        return self.array, info

    def step(self, action):
        self.array[:], *rest = super().step(action)
        return self.array, *rest


@pytest.mark.parametrize("given", ["by id", "as objects"])
def test_the_last_observation_of_an_episode_is_kept_though_the_next_one_is_written_over_it(given):
    gym.register("InPlace-v0", entry_point=InPlace)
    try:
        envs = SeededEnvs("InPlace-v0" if given == "by id" else [InPlace()], [0])
        steps = [envs.step(torch.zeros(1, 1, 1)) for _ in range(5)]
    finally:
        del gym.registry["InPlace-v0"]
    assert [(step.obs.item(), step.next_obs.item()) for step in steps] == [(0, 1), (1, 2), (2, 3), (3, 4), (0, 1)]


class Showing(gym.Env):
    """Shows the upper end of a space."""

    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, space, shown):
        self.observation_space, self.shown = space, shown

    def reset(self, *, seed=None, options=None):
        return self.shown, {}


@pytest.mark.parametrize(
    ("space", "shown", "expected"),
    [
        (gym.spaces.Discrete(3), 2, [0, 0, 1]),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([1, 2]), [0, 1, 0, 0, 1]),
        (gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Box(0, 9, (1,))]), (0, np.float32([7])), [1, 0, 7]),
    ],
)
def test_observations_of_whole_numbers_become_vectors(space, shown, expected):
    assert SeededEnvs([Showing(space, shown)], [0]).obs.flatten().tolist() == expected


class Strict(gym.Env):
    """Fails at an action that is out of its bounds."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Box(np.float32([-0.7, 0]), np.float32([0.1, 2]))

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return np.zeros(1, np.float32), 0.0, False, True, {}


def test_what_rounding_takes_out_of_the_bounds_comes_back():
    from algos.evaluate import Evaluator

    low, high = torch.tensor(Strict.action_space.low), torch.tensor(Strict.action_space.high)
    most = (high + low) / 2 + (high - low) / 2
    assert (most > high).any()
    gym.register("Strict-v0", entry_point=Strict)
    try:
        envs = SeededEnvs("Strict-v0", [0])
        sent = most.view(1, 1, 2)
        assert torch.equal(envs.step(sent).action, sent)  # what was sent is what is stored
        Evaluator(lambda count: make_vec("Strict-v0", count), [0], 2)(lambda obs: most.expand(1, 2, 2), 1)
    finally:
        del gym.registry["Strict-v0"]


class Spaces(gym.Env):
    observation_space: ClassVar[gym.Space] = gym.spaces.Box(-1, 1, (2,))
    action_space: ClassVar[gym.Space] = gym.spaces.Box(-1, 1, (2,))

    def __init__(self, obs=None, act=None):
        self.observation_space, self.action_space = obs or self.observation_space, act or self.action_space

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({"act": gym.spaces.Discrete(3)}, "Discrete actions"),
        ({"obs": gym.spaces.Text(3)}, "Text observations; .*what Gymnasium can flatten to one"),
        ({"act": gym.spaces.MultiBinary(3), "actions": "discrete"}, r"needs a finite number of them \(Discrete\)$"),
        ({"act": gym.spaces.MultiBinary(3)}, "MultiBinary actions"),
        ({"act": gym.spaces.Box(-np.inf, np.inf, (2,))}, "unbounded action space"),
        ({"act": gym.spaces.Box(0, 4, (2,), np.int64)}, "has whole numbers as actions"),
        ({"act": gym.spaces.Box(np.float32([-1, 0.5]), np.float32([1, 0.5]))}, "a lower bound is not below the upper"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*maximum and minimum values are equal")  # Gymnasium's
def test_spaces_that_do_not_fit_are_refused(spaces, message):
    gym.register("Spaces-v0", entry_point=Spaces)
    try:
        with pytest.raises(ValueError, match=message):
            SeededEnvs("Spaces-v0", [0], **spaces)
        if "act" in spaces and not isinstance(spaces["act"], gym.spaces.Discrete):
            with pytest.raises(ValueError, match=rf"\(Box or Discrete\)|{message}"):
                SeededEnvs("Spaces-v0", [0], **spaces | {"actions": "any"})
    finally:
        del gym.registry["Spaces-v0"]


def test_gymnasium_itself_agrees_on_the_whole_path():
    """Observations, rewards and ends of seed 5's first environment, from gymnasium.make with the same seed."""
    from envs.seeding import sub_seed

    envs = SeededEnvs("Walker2d-v5", [2, 5], 1)
    with quiet_mujoco():
        env = gym.make("Walker2d-v5")
    obs, _ = env.reset(seed=sub_seed(5, "train", 0) % 2**31)
    for step in play(envs, 100):
        assert np.array_equal(step.obs[1, 0].numpy(), obs.astype(np.float32))
        obs, reward, terminated, truncated, _ = env.step(step.action[1, 0].numpy())
        assert np.array_equal(step.next_obs[1, 0].numpy(), obs.astype(np.float32))
        assert step.reward[1, 0].item() == np.float32(reward) and bool(step.terminated[1, 0]) == terminated
        if terminated or truncated:
            obs, _ = env.reset()


@pytest.mark.parametrize("env_id", ["InvertedPendulum-v5", "CartPole-v1", "tabular/taxi"])
def test_restarted_episodes_depend_on_seeds_and_the_number_of_restarts_only(env_id):
    """However many steps were made in between, and also after a state was taken up."""
    kind = {"actions": "any", "dtype": torch.float64}
    envs, other = (SeededEnvs(env_id, [3, 8], 2, **kind) for _ in range(2))
    begun = []
    for steps in (0, 1, 5):
        for _ in range(steps):
            envs.step(torch.zeros(2, 2) if envs.discrete else torch.zeros(2, 2, 1))
        for each in (envs, other):
            each.restart()
        assert torch.equal(envs.obs, other.obs)
        begun.append(envs.obs)
    assert not any(torch.equal(begun[i], begun[j]) for i in range(3) for j in range(i))
    alone = SeededEnvs(env_id, [8], 2, **kind)
    for obs in begun:
        alone.restart()
        assert torch.equal(alone.obs[0], obs[1])
    if envs.resumable:
        fresh = SeededEnvs(env_id, [3, 8], 2, **kind)
        fresh.load_state_dict(envs.state_dict())
        for each in (envs, fresh):
            each.restart()
        assert torch.equal(envs.obs, fresh.obs)
