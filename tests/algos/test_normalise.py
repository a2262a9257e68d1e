"""Running statistics. The values are those of the stream-x sheet, section 9: of the official classes in float64."""

import math

import numpy as np
import pytest
import torch
from gymnasium.wrappers.utils import RunningMeanStd

from algos.normalise import RewardScaler, Statistics
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
