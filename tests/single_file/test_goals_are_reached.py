"""Every goal-conditioned method learns to reach goals on an open field, from random walks."""

from typing import Any

import pytest
import torch
from scripts import agent_type, module_of

from algos.data import Dataset
from algos.goals import Clusters, Goals
from algos.random import Random

SIZES: dict[str, Any] = {"hidden": (64, 64), "batch_size": 128, "lr": 1e-3, "dataset": "local/pointmaze-field-v0"}
SCRIPTS: dict[str, dict[str, Any]] = {
    "gcbc": {},
    "gcbc rvs": {"augment": 0.5},
    "gcivl": {"tau": 0.05},
    "gciql": {"tau": 0.05, "alpha": 0.3, "discount": 0.95},
    "crl": {"latent_size": 16, "alpha": 0.3, "discount": 0.95},
    "qrl": {"latent_size": 16, "alpha": 0.03},
    "hiql": {"tau": 0.05, "subgoal_steps": 5},
    "ota": {"tau": 0.05, "subgoal_steps": 5, "option_steps": 2},
}
UPDATES = 500


def walks(episodes: int = 60, length: int = 40) -> Dataset:
    """Points on a field that go straight towards random places, with noise: a step is 0.2 times the action."""
    g = torch.Generator().manual_seed(0)
    obs, target = torch.rand(2, episodes, 2, generator=g) * 8
    rows = torch.zeros(episodes, length + 1, 2 + 2 + 2)
    for t in range(length + 1):
        way = target - obs
        action = way / (way.norm(dim=1, keepdim=True) + 1e-6) + 0.5 * torch.randn(episodes, 2, generator=g)
        rows[:, t, :2], rows[:, t, 2:4] = obs, action.clamp(-1, 1)
        obs = obs + 0.2 * action.clamp(-1, 1)
        reached = (target - obs).norm(dim=1) < 0.5
        target = torch.where(reached[:, None], torch.rand(episodes, 2, generator=g) * 8, target)
    index = torch.arange(episodes * (length + 1)).view(episodes, -1)[:, :-1].reshape(-1)
    return Dataset("field", rows.view(-1, 6), index, 2, 2)


@pytest.mark.parametrize(
    "script",
    [s if s.startswith("gcbc") or s == "gcivl" else pytest.param(s, marks=pytest.mark.slow) for s in SCRIPTS],
)
def test_goals_on_a_field_are_reached(script):
    """From 64 random starts to goals 2 away, within six times the steps of the straight way."""
    data, seeds = walks(), [0, 1]
    goals = Goals(data)
    module = module_of(script)
    agent = agent_type(script)(module.Args(**SIZES, **SCRIPTS[script]), data.task, seeds)
    draws = agent.draws(Random(seeds))
    clusters = Clusters(goals, 30, 2)
    for _ in range(UPDATES):
        if script.startswith("gcbc"):
            batch = agent.batch(goals, clusters, draws())
        else:
            batch = agent.batch(goals, draws())
        agent.update(batch)
    g = torch.Generator().manual_seed(1)
    start = 2 + 4 * torch.rand(2, 64, 2, generator=g)
    angle = 6.2832 * torch.rand(2, 64, 1, generator=g)
    goal, obs = start + 2 * torch.cat([angle.cos(), angle.sin()], -1), start
    policy, reached = data.adapt(agent.policy), torch.zeros(2, 64, dtype=torch.bool)
    for _ in range(60):
        action = policy(obs, goal)
        assert action.abs().max() <= 1
        obs = obs + 0.2 * action
        reached |= (obs - goal).norm(dim=-1) < 0.6
    assert (reached.float().mean(1) > 0.8).all(), reached.float().mean(1)
