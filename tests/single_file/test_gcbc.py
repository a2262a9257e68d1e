"""GCBC in the form of RvS against a plain rewrite of one run; OGBench's form is in test_ogbench_updates.py."""

import pytest
import torch
from gcbc import Batch
from scripts import agent_of, assert_same, layers_of


def test_updates_of_rvs_equal_a_plain_rewrite_of_one_run(float64):
    """The network ends in tanh, the loss is the mean squared error, and gradients have a norm of at most 0.25."""
    agent = agent_of("gcbc rvs", lr=0.01)
    nets = [layers_of(agent.actor.net, run) for run in range(2)]
    adams = [torch.optim.Adam(net.parameters(), lr=0.01) for net in nets]
    norms = []
    for number in range(4):
        generator = torch.Generator().manual_seed(number)
        obs, action, goal = (torch.randn(2, 16, size, generator=generator) for size in (7, 2, 2))
        replaced = (torch.rand(2, 16, generator=generator) < 0.5).double()
        metrics = agent.update(Batch(obs, 5 * action, goal, replaced))
        for run, (net, adam) in enumerate(zip(nets, adams, strict=True)):
            found = torch.tanh(net(torch.cat([obs[run], goal[run]], -1)))
            loss = ((found - 5 * action[run]) ** 2).sum() / (16 * 2)
            adam.zero_grad()
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25).item())
            adam.step()
            assert_same(agent.actor.net, net, run)
            assert metrics["actor_loss"][run].item() == pytest.approx(loss.item(), abs=1e-9)
            assert metrics["augmented"][run].item() == pytest.approx(replaced[run].mean().item())
    assert min(norms) > 0.25  # all of them were scaled down
    acts = torch.tanh(nets[1](torch.cat([obs[1], goal[1]], -1)))
    torch.testing.assert_close(agent.policy(obs, torch.cat([goal, obs], -1))[1], acts, atol=1e-9, rtol=0)
