"""Running statistics. The values are those of the stream-x sheet, section 9: of the official classes in float64."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import NormalizeReward
from gymnasium.wrappers.utils import RunningMeanStd

from algos.normalise import RewardNormaliser, RewardScaler, Statistics
from algos.per_run import PerRun

D = torch.float64


def test_welford():
    statistics = Statistics(1, 1)
    expected = [(2, 1, 0), (3, 2, 0.707107), (5, 13, 1.109400), (3.5, 17.6667, -1.070620)]
    for x, (mean, variance, normalised) in zip((2.0, 4.0, 9.0, -1.0), expected, strict=True):
        sample = torch.tensor([[x]], dtype=D)
        statistics.update(sample)
        assert statistics.mean.item() == pytest.approx(mean)
        assert statistics.variance().item() == pytest.approx(variance, abs=1e-4)
        assert statistics.normalise(sample).item() == pytest.approx(normalised, abs=1e-6)


@pytest.mark.parametrize("count", [1, 5])
def test_batches_give_the_observations_of_gymnasiums_wrapper(count):
    """Its float64 class, and for one environment its wrapper too, which normalises one observation at a time."""
    ours, theirs = Statistics(2, 3, prior=1e-4), [RunningMeanStd(shape=(3,)) for _ in range(2)]
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = rng.normal(5, [1, 10, 0.1], (2, count, 3))
        ours.update(torch.from_numpy(x))
        for run, statistics in enumerate(theirs):
            statistics.update(x[run])
            np.testing.assert_allclose(ours.mean[run], statistics.mean, rtol=1e-12)
            np.testing.assert_allclose(ours.variance()[run], statistics.var, rtol=1e-10)
            expected = (x[run] - statistics.mean) / np.sqrt(statistics.var + 1e-8)
            np.testing.assert_allclose(ours.normalise(torch.from_numpy(x))[run], expected, rtol=1e-5, atol=1e-6)


def test_a_batch_counts_as_its_samples_one_by_one():
    together, single = Statistics(2, 3), Statistics(2, 3)
    for x in torch.randn(4, 2, 6, 3, dtype=D):
        together.update(x)
        for sample in x.unbind(1):
            single.update(sample)
    torch.testing.assert_close(together.mean, single.mean)
    torch.testing.assert_close(together.variance(), single.variance())


def test_statistics_of_other_runs_stay_bitwise():
    statistics = Statistics(2, 3)
    for _ in range(5):
        statistics.update(torch.randn(2, 3, dtype=D))
    before = [b.clone() for b in statistics.buffers()]
    statistics.update(torch.full((2, 3), math.nan, dtype=D), where=torch.tensor([1.0, 0.0]))
    for old, new in zip(before, statistics.buffers(), strict=True):
        assert torch.equal(old[1], new[1])
        assert not torch.equal(old[0], new[0])


def test_rewards_are_scaled_and_a_last_reward_leaks_into_the_next_episode():
    scaler = RewardScaler(1, 0.99)
    stream = [(1, 0), (2, 0), (3, 1), (-1, 0), (0.5, 0)]
    totals, scaled = (1, 2.99, 3, 1.97, 2.4503), (1.0, 1.421320, 2.604563, -1.044352, 0.599116)
    for (reward, done), total, expected in zip(stream, totals, scaled, strict=True):
        out = scaler(torch.tensor([float(reward)], dtype=D), torch.tensor([float(done)], dtype=D))
        assert scaler.total.item() == pytest.approx(total)
        assert out.item() == pytest.approx(expected, abs=1e-6)


def test_the_first_reward_after_many_zeros_is_large():
    scaler = RewardScaler(1, 0.99)
    for reward in [0.0] * 99 + [1.0]:
        out = scaler(torch.tensor([reward], dtype=D), torch.zeros(1, dtype=D))
    assert out.item() == pytest.approx(10.0, abs=1e-5)


def test_the_discount_may_differ_between_runs():
    scaler, alone = RewardScaler(2, PerRun([0.9, 0.5])), [RewardScaler(1, 0.9), RewardScaler(1, 0.5)]
    for reward in (1.0, -2.0, 3.0):
        out = scaler(torch.full((2,), reward, dtype=D), torch.zeros(2, dtype=D))
        own = [one(torch.tensor([reward], dtype=D), torch.zeros(1, dtype=D)) for one in alone]
        assert torch.equal(out, torch.cat(own))
    assert out[0] != out[1]


def rewards_and_ends(steps: int = 60) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(rng.normal(1, 3, (2, 4)), (rng.random((2, 4)) < 0.1).astype(float)) for _ in range(steps)]


def test_normalised_rewards_equal_a_plain_loop():
    """The sum starts anew after the last reward of an episode, and there is no mean to subtract."""
    normaliser = RewardNormaliser(2, 4, 0.9)
    totals, statistics = np.zeros((2, 4)), [RunningMeanStd(shape=()) for _ in range(2)]
    for reward, ended in rewards_and_ends():
        out = normaliser(torch.from_numpy(reward), torch.from_numpy(ended))
        totals = 0.9 * totals + reward
        for run, own in enumerate(statistics):
            own.update(totals[run])
            expected = np.clip(reward[run] / np.sqrt(own.var + 1e-8), -10, 10)
            np.testing.assert_allclose(out[run], expected, rtol=1e-5)
        totals *= 1 - ended


class Rewards(gym.Env):
    """An environment that gives the rewards that it was given, and never ends an episode."""

    observation_space = action_space = gym.spaces.Box(0, 1, (1,))

    def __init__(self, rewards: list[float]):
        self.rewards = iter(rewards)

    def step(self, action):
        return np.zeros(1), next(self.rewards), False, False, {}


def test_normalised_rewards_are_bitwise_gymnasiums_as_long_as_no_episode_ends():
    """Those of its wrapper for one environment, whose sums are float64 like ours, rounded to float32."""
    rewards = [float(reward[0, 0]) for reward, _ in rewards_and_ends()]
    theirs, ours = NormalizeReward(Rewards(rewards), gamma=0.9), RewardNormaliser(1, 1, 0.9)
    for reward in rewards:
        expected = np.clip(theirs.step(None)[1], -10, 10).astype(np.float32)
        out = ours(torch.tensor([[reward]], dtype=D), torch.zeros(1, 1))
        assert out.item() == expected.item()


def test_rewards_of_a_broken_run_change_no_other_run():
    whole, broken = RewardNormaliser(3, 2, 0.9), RewardNormaliser(3, 2, 0.9)
    for number in range(6):
        reward, ended = torch.randn(3, 2, dtype=D), torch.zeros(3, 2, dtype=D)
        bad = reward.clone()
        if number == 2:
            bad[1] = math.nan
        out, other = whole(reward, ended), broken(bad, ended)
        assert torch.equal(out[[0, 2]], other[[0, 2]])
    assert broken.total[1].isnan().all()
