"""MOPO against a plain rewrite of one run; its penalty; its base."""

import math

import pytest
import torch
from model_data import PlainSAC, agent_and_batch
from mopo import Args
from offline_data import at_random, batch_of, draws_of
from scripts import agent_of

from algos.model_based import ModelBasedArgs
from algos.models import Prediction
from algos.offline import OfflineArgs


class Plain(PlainSAC):
    """MOPO's update: critics, actor, temperature, targets."""

    def update(self, batch, draws):
        run = self.run
        obs, action, reward, next_obs, ended = (x[run] for x in batch)
        alpha = min(self.log_alpha.exp().item(), 1.0)
        with torch.no_grad():
            next_action, next_log_prob = self.sample(next_obs, draws.next_action[run])
            soft = self.values(self.targets, next_obs, next_action).min(0)[0] - alpha * next_log_prob
            target = reward + 0.99 * (1 - ended) * soft
        values = self.values(self.critics, obs, action)
        critic_loss = self.descend(self.critic_adam, sum((q - target).pow(2).mean() for q in values))
        new_action, log_prob = self.sample(obs, draws.action[run])
        value = self.values(self.critics, obs, new_action).min(0)[0]
        actor_loss = self.descend(self.actor_adam, (alpha * log_prob - value).mean())
        self.descend(self.alpha_adam, -(self.log_alpha * (log_prob.detach() + self.target_entropy)).mean())
        self.move_targets()
        self.metrics = {
            "critic_loss": critic_loss, "actor_loss": actor_loss, "value": values.mean(), "entropy": -log_prob.mean(),
            "alpha": self.log_alpha.exp().clamp(max=1.0),
        }  # fmt: skip


def test_updates_equal_a_plain_rewrite_of_one_run(float64):
    agent, _, _ = agent_and_batch("mopo", total_steps=50, updates_per_epoch=2, actor_lr=0.01, temperature_lr=0.05)
    assert agent.log_alpha.tolist() == [0.0, 0.0]
    with torch.no_grad():
        agent.log_alpha.copy_(torch.tensor([-1.0, 0.2]))  # below and above the bound
    plain = [Plain(agent, run, 2) for run in range(2)]
    for number in range(6):
        batch, draws = batch_of(at_random(), number), draws_of(agent)
        for run in plain:
            rate = 0.01 * 0.5 * (1 + math.cos(number // 2 / 25 * math.pi))  # there are 25 epochs
            run.actor_adam.param_groups[0]["lr"] = torch.tensor(rate, dtype=torch.float32).item()
            run.update(batch, draws)
        metrics = agent.update(batch, draws)
        for run in plain:
            run.assert_same(agent, metrics, batch.obs)
    assert agent.alpha[0] < 1 < agent.log_alpha[1].exp()


def test_the_temperature_counts_as_at_most_one(float64):
    agent, batch, draws = agent_and_batch("mopo")
    with torch.no_grad():
        agent.log_alpha.copy_(torch.tensor([3.0, -1.0]))
    assert agent.alpha.tolist() == [1.0, pytest.approx(0.36787944)]
    high = agent.actor_loss(batch.obs, draws.action)[0]
    with torch.no_grad():
        agent.log_alpha.zero_()
    assert torch.equal(high[0], agent.actor_loss(batch.obs, draws.action)[0][0])


def prediction(std):
    """A step of one row with these standard deviations of the members."""
    zeros = torch.zeros(1, 1, 2)
    std = torch.tensor(std)[None, :, None]
    return Prediction(zeros, torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.bool), std)


def test_the_penalty_is_the_greatest_norm_over_all_members_and_outputs():
    """Sheet, check 4."""
    step = prediction([[0.1, 0.2, 0.2], [0.3, 0.0, 0.4]])
    agent = agent_of("mopo", seeds=(0,), penalty_weight=2.0)
    assert agent.penalty(step).item() == pytest.approx(2 * 0.5)
    assert agent_of("mopo", seeds=(0,), penalty_weight=0.0).penalty(step).item() == 0  # the base, MBPO
    assert agent.penalty(prediction([[0.0]])).item() == 0  # a model without doubt, such as the simulator


def test_the_weight_of_the_penalty_may_vary():
    agent = agent_of("mopo", seeds=(0, 1), vary=("penalty_weight=0,1",))
    step = prediction([[0.3, 0.0, 0.4]])
    step = Prediction(*(x.expand(4, *x.shape[1:]) for x in step))
    torch.testing.assert_close(agent.penalty(step).squeeze(), torch.tensor([0.0, 0.0, 0.5, 0.5]))


@pytest.mark.parametrize(
    ("dataset", "length", "weight"),
    [
        ("d4rl/halfcheetah-medium-v2", 5, 0.5),
        ("d4rl/hopper-medium-v2", 5, 5.0),
        ("local/hopper-medium-replay-v0", 5, 2.5),
        ("minari/mujoco/hopper/medium-v0", 5, 5.0),
        ("d4rl/walker2d-medium-v2", 5, 0.5),
        ("local/walker2d-medium-replay-v0", 1, 2.5),
        ("d4rl/walker2d-medium-expert-v2", 1, 2.5),
        ("d4rl/halfcheetah-medium-replay-v2", 5, 0.5),
        ("d4rl/halfcheetah-medium-expert-v2", 5, 2.5),
        ("d4rl/hopper-medium-expert-v2", 5, 5.0),
    ],
)
def test_defaults_are_those_of_the_dataset(dataset, length, weight):
    """Sheet, table 4."""
    args = Args(dataset=dataset)
    assert (args.rollout_length, args.penalty_weight) == (length, weight)


def test_the_protocol_is_the_official_one():
    args = Args()
    assert issubclass(Args, ModelBasedArgs) and issubclass(ModelBasedArgs, OfflineArgs)
    assert (args.total_steps, args.updates_per_epoch, args.rollouts, args.retain_epochs) == (
        3_000_000,
        1_000,
        50_000,
        5,
    )
    assert (args.batch_size, args.real) == (256, 12)
    assert (args.members, args.elites, args.dynamics_hidden) == (7, 5, (200,) * 4)
    assert (args.dynamics_lr, args.dynamics_batch_size, args.dynamics_epochs) == (1e-3, 256, 2_000)
    assert args.hidden == (256, 256)
    assert (args.actor_lr, args.critic_lr, args.temperature_lr) == (1e-4, 3e-4, 1e-4)
