"""Segments, advantages and minibatches of on-policy learning."""

import pytest
import torch

from algos.per_run import PerRun
from algos.rollout import Outcome, Rollout, discounted_sums, gae, minibatches
from envs import Task

TASK = Task("Made-v0", (3,), 2, False, (-1.0, -1.0), (1.0, 1.0), 50)


def outcome(runs: int = 2, steps: int = 37, envs: int = 3, seed: int = 0) -> Outcome:
    """A segment in which episodes end in both ways."""
    generator = torch.Generator().manual_seed(seed)
    how = torch.rand(runs, steps, envs, generator=generator, dtype=torch.float64)
    reward = torch.randn(runs, steps, envs, generator=generator, dtype=torch.float64)
    return Outcome(reward, (how < 0.2).double(), (how < 0.1).double(), torch.zeros(runs, steps, envs, 3))


def values(like: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=like.dtype)


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 37])
@pytest.mark.parametrize("limits", [False, True])
def test_advantages_equal_a_plain_loop(steps, limits):
    made = outcome(steps=steps)
    value, following = values(made.reward, 1), values(made.reward, 2)
    advantage = gae(made, value, following, 0.97, 0.9, limits)
    for run in range(2):
        for env in range(3):
            later = 0.0
            for t in reversed(range(steps)):
                reward, ended, terminated = (x[run, t, env].item() for x in made[:3])
                goes_on = 1 - (terminated if limits else ended)
                delta = reward + 0.97 * goes_on * following[run, t, env].item() - value[run, t, env].item()
                later = delta + 0.97 * 0.9 * (1 - ended) * later
                assert advantage[run, t, env].item() == pytest.approx(later, rel=1e-12, abs=1e-12)


def test_a_time_limit_is_an_end_only_without_bootstrapping():
    made = Outcome(torch.ones(1, 1, 2), torch.ones(1, 1, 2), torch.tensor([[[0.0, 1.0]]]), torch.zeros(1, 1, 2, 3))
    value, following = torch.zeros(1, 1, 2), torch.full((1, 1, 2), 5.0)
    assert gae(made, value, following, 0.9, 0.5, False).flatten().tolist() == [1.0, 1.0]
    assert gae(made, value, following, 0.9, 0.5, True).flatten().tolist() == [5.5, 1.0]


def test_advantages_of_a_run_are_bitwise_those_of_the_run_alone():
    made = outcome()
    value, following = values(made.reward, 1), values(made.reward, 2)
    discount, trace = PerRun([0.9, 0.99]), PerRun([0.95, 0.8])
    together = gae(made, value, following, discount, trace, False)
    for run, (one, other) in enumerate([(0.9, 0.95), (0.99, 0.8)]):
        alone = gae(Outcome(*(x[run : run + 1] for x in made)), value[[run]], following[[run]], one, other, False)
        assert torch.equal(together[[run]], alone)


def test_a_number_that_is_not_finite_leaves_later_steps_alone():
    x = torch.tensor([1.0, float("nan"), 2.0, 3.0]).view(1, 4, 1)
    sums = discounted_sums(x, torch.tensor([1.0, 1.0, 1.0, 1.0]).view(1, 4, 1)).flatten()
    assert sums[2:].tolist() == [5.0, 3.0]
    assert sums[:2].isnan().all()


def test_a_rollout_is_written_again_from_its_start():
    rollout = Rollout(2, 3, 1, TASK)
    for number in range(4):
        x = torch.full((2, 1), float(number))
        rollout.add(x[..., None].expand(2, 1, 3), x[..., None].expand(2, 1, 2), Outcome(x, x, x, x[..., None]))
    assert rollout.outcome.reward[0, :, 0].tolist() == [3.0, 1.0, 2.0]
    assert rollout.obs[1, :, 0, 2].tolist() == rollout.action[1, :, 0, 1].tolist() == [3.0, 1.0, 2.0]


def test_discrete_actions_are_whole_numbers():
    rollout = Rollout(1, 2, 3, Task("Made-v0", (3,), 4, True, (), (), 50))
    assert rollout.action.shape == (1, 2, 3)
    assert rollout.action.dtype == torch.int64


def test_minibatches_go_through_each_runs_rows_once_in_its_own_order():
    made = outcome(runs=3, steps=10, envs=1)
    order = torch.rand(3, 10, generator=torch.Generator().manual_seed(0))
    batches = [batch.reward[..., 0] for batch in minibatches(made, order, 3)]
    assert [batch.shape for batch in batches] == [(3, 3)] * 3  # one row is left out
    for run in range(3):
        expected = made.reward[run, order[run].argsort()[:9], 0]
        assert torch.equal(torch.cat(batches, 1)[run], expected)
    assert not torch.equal(order[0].argsort(), order[1].argsort())
