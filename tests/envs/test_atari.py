"""Lives, games and frames."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import RecordEpisodeStatistics

from envs import SeededEnvs, make_vec
from envs.atari import Games


class TwoLives(gym.Env):
    """Loses a life every 3rd frame and is over with the second; rewards 1, 10, 100, … and starts only with FIRE."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)
    resets = 0

    def __init__(self):
        self.ale = SimpleNamespace(lives=lambda: 2 - self.frame // 3)

    def get_action_meanings(self):
        return ["NOOP", "FIRE"]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        TwoLives.resets += 1
        self.frame, self.fired = 0, False
        return np.array([0.0]), {}

    def step(self, action):
        self.fired |= action == 1
        assert self.fired
        self.frame += 1
        return np.array([float(self.frame)]), 10.0**self.frame, self.frame == 6, False, {}


def two_lives(episodic_life: bool = True) -> gym.Env:
    frames = RecordEpisodeStatistics(TwoLives())
    return Games(frames, frames, episodic_life)


@pytest.fixture
def game():
    gym.register("TwoLives-v0", entry_point=two_lives)
    yield "TwoLives-v0"
    del gym.registry["TwoLives-v0"]


def test_a_life_ends_the_episode_and_only_a_game_starts_anew(game):
    envs = SeededEnvs(game, [0], actions="discrete")
    before = TwoLives.resets
    seen, ended = [], []
    for _ in range(10):
        step = envs.step(torch.zeros(1, 1, dtype=torch.long))
        seen.append((step.obs.item(), step.next_obs.item(), step.terminated.item()))
        ended += [(e.run, e.total, e.length) for e in envs.take_ended()]
    # FIRE is frame 1; the life is lost in frame 3, from where the next episode goes on without a step
    assert seen == [(1, 2, 0), (2, 3, 1), (3, 4, 0), (4, 5, 0), (5, 6, 1)] * 2
    assert ended == [(0, 1111110.0, 5)] * 2  # FIRE's own reward belongs to the game
    assert TwoLives.resets - before == 2


def test_without_episodic_lives_only_the_game_ends(game):
    envs = SeededEnvs(game, [0], actions="discrete", episodic_life=False)
    ends = [envs.step(torch.zeros(1, 1, dtype=torch.long)).terminated.item() for _ in range(5)]
    assert ends == [0, 0, 0, 0, 1]
    assert [e.total for e in envs.take_ended()] == [1111110.0]


def test_a_seeded_reset_starts_a_game_even_after_a_lost_life(game):
    env = two_lives()
    env.reset(seed=0)
    assert [env.step(0)[2] for _ in range(2)] == [False, True]
    assert env.reset(seed=1)[0] == [1.0]


def test_breakout_in_frames_and_whole_games():
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    envs = SeededEnvs("BreakoutNoFrameskip-v4", [0, 1], actions="discrete")
    assert envs.task.obs_shape == (1, 84, 84) and envs.task.act_size == 4 and envs.task.limit == 0
    assert envs.obs.min() >= 0 and 100 < envs.obs.max() <= 255
    generator, lives, totals, games = torch.Generator().manual_seed(0), torch.zeros(2), torch.zeros(2), 0
    for _ in range(500):
        step = envs.step(torch.randint(4, (2, 1), generator=generator))
        totals += step.reward[:, 0]
        lives += step.terminated[:, 0]
        for ended in envs.take_ended():
            games += 1
            assert ended.total == totals[ended.run] and lives[ended.run] == 5
            totals[ended.run], lives[ended.run] = 0, 0
    assert games >= 2


def test_a_stack_has_the_last_frames_and_begins_with_the_first():
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    actions = np.random.default_rng(0).integers(0, 4, (40, 1))
    shown: dict[int, list] = {}
    for stack in (1, 4):
        venv = make_vec("BreakoutNoFrameskip-v4", 1, stack=stack, episodic_life=False)
        assert venv.single_observation_space.shape == (stack, 84, 84)
        first = venv.reset(seed=3)[0]
        assert (first == first[:, :1]).all()
        shown[stack] = [first[0].copy(), *(venv.step(action)[0][0].copy() for action in actions)]
    singles = [shown[1][0]] * 3 + shown[1]
    for t, stacked in enumerate(shown[4]):
        assert np.array_equal(stacked, np.concatenate(singles[t : t + 4]))
    assert not np.array_equal(stacked[0], stacked[3])


def test_a_time_limit_counts_steps_of_one_game_and_not_of_a_life():
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    venv = make_vec("BreakoutNoFrameskip-v4", 1, max_episode_steps=60)
    venv.reset(seed=0)
    lives = steps = 0
    for _ in range(100):
        steps += 1
        _, _, terminated, truncated, infos = venv.step(np.array([1]))
        lives += int(terminated[0])
        if truncated[0]:
            break
    # one step of the 60 is FIRE, and a step that only resets follows each lost life
    assert lives and steps - lives == 59
    assert np.isfinite(infos["game_return"][0])
