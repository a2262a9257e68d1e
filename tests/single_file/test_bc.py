"""Behaviour cloning against the likelihood written for one run."""

import math

import bc
import h5py
import numpy as np
import pytest
import torch
from offline_data import BATCH, at_random, batch_of, draws_of, offline_agent, seen_data, write_hdf5
from scripts import assert_same, layers_of

from algos.data import load
from algos.errors import UserError


def test_three_updates_equal_the_algorithm_written_for_one_run(float64):
    """The agent has dropout, and a learning rate that falls along a cosine."""
    data, one = at_random(), offline_agent("bc", dropout=0.3, lr=0.01, total_steps=4)
    net, log_std = layers_of(one.actor.net, 1), torch.nn.Parameter(torch.zeros(2))
    adam = torch.optim.Adam([*net.parameters(), log_std], lr=0.01)
    for k in range(3):
        torch.manual_seed(k)
        batch, uniform = batch_of(data, k), torch.rand(2, 2, BATCH, 8)
        x, layer = batch.obs[1], 0
        for module in net:
            x = module(x)
            if isinstance(module, torch.nn.ReLU):
                x, layer = x * (uniform[1, layer, :, : x.shape[1]] >= 0.3) / 0.7, layer + 1
        log_prob = torch.distributions.Normal(torch.tanh(x), log_std.exp()).log_prob(batch.action[1]).sum(-1)
        adam.param_groups[0]["lr"] = 0.005 * (1 + math.cos(math.pi * k / 4))
        adam.zero_grad()
        (-log_prob.mean()).backward()
        adam.step()
        one.update(batch, bc.Draws(uniform))
    assert_same(one.actor.net, net, 1)
    torch.testing.assert_close(one.actor.log_std[1, 0], log_std, atol=1e-9, rtol=0)


def test_random_numbers_are_drawn_for_dropout_only():
    assert draws_of(offline_agent("bc", dropout=0.0)).dropout is None
    assert draws_of(offline_agent("bc", dropout=0.3)).dropout.shape == (2, 2, BATCH, 8)


def test_the_evaluated_actor_has_no_dropout():
    one = offline_agent("bc", dropout=0.9)
    obs = torch.randn(2, 5, 3)
    x = torch.stack([layers_of(one.actor.net, run)(obs[run]) for run in range(2)])
    torch.testing.assert_close(one.policy(obs), torch.tanh(x))


@pytest.mark.parametrize(("fraction", "episodes"), [(1.0, 30), (0.1, 3), (0.11, 4)])
def test_it_keeps_the_trajectories_of_highest_return(fraction, episodes, train, tmp_path):
    path = write_hdf5(tmp_path / "hopper.hdf5")
    with seen_data() as seen:
        train("bc", dataset=str(path), top_fraction=fraction, total_steps=1, eval_episodes=0, hidden=(4,))
    with h5py.File(path) as file:
        rewards = file["rewards"][:].reshape(30, 10)
        best = np.sort(np.argsort(-rewards.sum(1))[:episodes])
        obs = file["observations"][:].reshape(30, 10, 4)[best].reshape(-1, 4)
    np.testing.assert_array_equal(seen[0].obs[seen[0].index].numpy(), obs)


def test_what_is_kept_is_standardised_by_its_own_statistics(train, tmp_path):
    with seen_data() as seen:
        train("bc", dataset=str(write_hdf5(tmp_path / "hopper.hdf5")), top_fraction=0.1, standardise=True,
              total_steps=1, eval_episodes=0, hidden=(4,))  # fmt: skip
    obs = seen[0].obs[seen[0].index].double()
    torch.testing.assert_close(obs.mean(0), torch.zeros(4).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(obs.std(0, correction=0), torch.ones(4).double(), atol=1e-2, rtol=0)


def test_an_experts_first_trajectories_are_mixed_in(train, tmp_path):
    """They have ten transitions, and the very last one is left out."""
    others, expert = write_hdf5(tmp_path / "others.hdf5"), write_hdf5(tmp_path / "expert.hdf5", seed=1)
    short = {"dataset": str(others), "total_steps": 2, "eval_episodes": 0, "batch_size": 4, "hidden": (4,)}
    facts = train("bc", expert_dataset=str(expert), expert_trajectories=2, **short).config["facts"]
    assert (facts["transitions"], facts["hidden_expert"]) == (300 + 19, 19)
    assert facts["digest"] == load(str(others)).joined(load(str(expert)).first(19)).digest
    with pytest.raises(UserError, match="fewer than 99"):
        bc.main(bc.Args(expert_dataset=str(expert), expert_trajectories=99, **short))


@pytest.mark.parametrize(
    ("dataset", "dropout"),
    [("d4rl/hopper-medium-v2", 0.0), ("d4rl/kitchen-mixed-v0", 0.1), ("d4rl/hammer-human-v0", 0.1)],
)
def test_settings_depend_on_the_domain(dataset, dropout):
    args = bc.Args(dataset=dataset)
    assert (args.dropout, args.decay, args.total_steps) == (dropout, "cosine", 1_000_000)
    assert (args.batch_size, args.lr) == (256, 3e-4)
