"""MOBILE against a plain rewrite of one run; its inconsistency and its target."""

import math

import pytest
import torch
from mobile import MOBILE, Args, Draws
from model_data import PlainSAC, agent_and_batch
from offline_data import at_random, batch_of
from scripts import agent_of

from algos.arguments import check
from algos.dynamics import Ensemble, Settings
from algos.errors import UserError
from algos.model_based import ModelData
from algos.models import Learned
from algos.nn import initialise
from algos.terminations import never


class Plain(PlainSAC):
    """MOBILE's update: critics, actor, temperature, targets."""

    def update(self, batch, guesses, draws, weight):
        run = self.run
        obs, action, reward, next_obs, ended = (x[run] for x in batch)
        alpha = min(self.log_alpha.exp().item(), 1.0)
        with torch.no_grad():
            means = []
            for elite, noises in zip(guesses[run], draws.guessed_action[run], strict=True):
                values = []
                for seen, noise in zip(elite, noises, strict=True):
                    values.append(self.values(self.targets, seen, self.sample(seen, noise)[0]).min(0)[0])
                means.append(sum(values) / len(values))
            middle = sum(means) / len(means)
            doubt = (sum((mean - middle) ** 2 for mean in means) / (len(means) - 1)).sqrt()
            penalty = torch.cat([torch.zeros(len(obs) - len(doubt)), doubt])
            next_action, _ = self.sample(next_obs, draws.next_action[run])
            value = self.values(self.targets, next_obs, next_action).min(0)[0]
            target = torch.clamp(reward - weight * penalty + 0.99 * (1 - ended) * value, min=0)
        values = self.values(self.critics, obs, action)
        critic_loss = self.descend(self.critic_adam, (values - target).pow(2).mean())
        new_action, log_prob = self.sample(obs, draws.action[run])
        value = self.values(self.critics, obs, new_action).min(0)[0]
        actor_loss = self.descend(self.actor_adam, (alpha * log_prob - value).mean())
        self.descend(self.alpha_adam, -(self.log_alpha * (log_prob.detach() + self.target_entropy)).mean())
        self.move_targets()
        self.metrics = {
            "critic_loss": critic_loss, "actor_loss": actor_loss, "value": values.mean(),
            "penalty": weight * doubt.mean(), "entropy": -log_prob.mean(),
            "alpha": self.log_alpha.exp().clamp(max=1.0),
        }  # fmt: skip


def guesses_of(agent, number=0):
    args, size = agent.args, agent.task.obs_size
    shape = (2, args.elites, args.guesses, args.batch_size - args.real, size)
    return torch.randn(*shape, generator=torch.Generator().manual_seed(number))


def test_updates_equal_a_plain_rewrite_of_one_run(float64):
    settings = {"elites": 3, "guesses": 4, "penalty_weight": 0.7, "temperature_lr": 0.05, "actor_lr": 0.01}
    agent, _, draws = agent_and_batch("mobile", total_steps=50, updates_per_epoch=2, **settings)
    assert agent.log_alpha.tolist() == [0.0, 0.0]
    with torch.no_grad():
        agent.log_alpha.copy_(torch.tensor([-1.0, 0.2]))  # below and above the bound
    plain = [Plain(agent, run, 2) for run in range(2)]
    for number in range(4):
        batch, guesses = batch_of(at_random(), number), guesses_of(agent, number)
        rate = 0.01 * 0.5 * (1 + math.cos(number // 2 / 25 * math.pi))  # there are 25 epochs
        for run in plain:
            run.actor_adam.param_groups[0]["lr"] = torch.tensor(rate, dtype=torch.float32).item()
            run.update(batch, guesses, draws, 0.7)
        metrics = agent.update(batch, guesses, draws)
        for run in plain:
            run.assert_same(agent, metrics, batch.obs)
        assert (metrics["penalty"] > 0).all()
    assert agent.alpha[0] < 1 < agent.log_alpha[1].exp()


def test_the_inconsistency_is_the_deviation_over_elites_of_means_over_guesses():
    """Sheet, check 4: means 2, 2, 3 give 0.577350."""
    agent = agent_of("mobile", seeds=(0,), elites=3, guesses=2)
    agent.actor.sample = lambda obs, noise: (noise, None)
    agent.target_critic.forward = lambda obs, action: obs[:, None, :, 0].expand(-1, 2, -1)
    values = torch.tensor([[1.0, 3.0], [2.0, 2.0], [2.5, 3.5]])[None, :, :, None, None].expand(1, 3, 2, 1, 7)
    noise = torch.zeros(1, 3, 2, 1, 2)
    assert agent.inconsistency(values.contiguous(), noise).item() == pytest.approx(0.577350, abs=1e-6)


def test_the_targets_are_bounded_and_have_no_entropy(float64):
    agent, batch, draws = agent_and_batch("mobile", elites=2, guesses=2)
    before = agent.critic_loss(batch, guesses_of(agent), draws)
    with torch.no_grad():
        agent.log_alpha.fill_(-5.0)
    assert torch.equal(before[0], agent.critic_loss(batch, guesses_of(agent), draws)[0])
    low = batch._replace(reward=torch.full_like(batch.reward, -1e6))
    loss, _, _ = agent.critic_loss(low, guesses_of(agent), draws)
    q = agent.critic(batch.obs, batch.action)
    torch.testing.assert_close(loss, q.square().mean((1, 2)))  # all targets are 0
    assert not agent.critic_loss(batch, None, draws)[2].any()


def test_identical_members_agree():
    """Sheet, check 7: the same guess of each elite, with the same action, has no inconsistency."""
    agent = agent_of("mobile", seeds=(0, 1), elites=3, guesses=1)
    guess = torch.randn(2, 1, 1, 12, 7).expand(2, 3, 1, 12, 7)
    noise = torch.randn(2, 1, 1, 12, 2).expand(2, 3, 1, 12, 2)
    assert agent.inconsistency(guess, noise).max() < 1e-5


def test_identical_members_of_an_ensemble_agree():
    """Sheet, check 7: their guesses differ by the noise alone, which is the same for all members here."""
    agent, ensemble = agent_of("mobile", seeds=(0, 1), elites=3, guesses=4), Ensemble(2, 7, 2, Settings(hidden=(8,)))
    initialise(ensemble, [torch.Generator().manual_seed(seed) for seed in (0, 1)])
    generator = torch.Generator().manual_seed(2)
    obs, action, noise = (torch.randn(2, *shape, generator=generator) for shape in ((12, 7), (12, 2), (1, 4, 12, 9)))
    noise = noise.expand(2, 3, 4, 12, 9)

    def doubt():
        return agent.inconsistency(Learned(ensemble, 3, never).guesses(obs, action, noise[..., :7]), noise[..., 7:])

    assert doubt().mean() > 1e-3
    with torch.no_grad():
        for parameter in ensemble.net.parameters():
            parameter.copy_(parameter[:, :1].expand_as(parameter))
    assert doubt().max() < 1e-6


def test_guesses_are_for_the_models_rows_which_are_the_last_of_a_batch(train_short, monkeypatch):
    """Through a whole run: without noise, each guess is an elite's mean for the observation and action of its row."""
    sources, seen = [], []
    update, draws_of, make = MOBILE.update, MOBILE.draws, ModelData.__init__

    def kept(source, *args, **kwargs):
        sources.append(source)
        make(source, *args, **kwargs)

    def without_noise(agent, random):
        draws = draws_of(agent, random)
        return lambda: (drawn := draws())._replace(guess=torch.zeros_like(drawn.guess))

    def noted(agent, batch, guesses, draws):
        seen.append((batch, guesses))
        return update(agent, batch, guesses, draws)

    monkeypatch.setattr(ModelData, "__init__", kept)
    monkeypatch.setattr(MOBILE, "draws", without_noise)
    monkeypatch.setattr(MOBILE, "update", noted)
    assert train_short("mobile", seeds=("0", "1")).code == 0
    (source,) = sources
    stored = {tuple(row) for row in source.data.obs.tolist()}
    modelled = {tuple(row) for row in source.buffer.gather(torch.arange(80).expand(2, -1)).next_obs[0].tolist()}
    assert len(seen) == 20 and not stored & modelled
    for batch, guesses in seen:
        assert guesses.shape == (2, 2, 3, 12, 4)
        assert all(tuple(row) in stored for row in batch.next_obs[0, :4].tolist())
        assert not any(tuple(row) in stored for row in batch.next_obs[0, 4:].tolist())
        for row in range(12):
            obs, action = batch.obs[:, 4 + row : 5 + row], batch.action[:, 4 + row : 5 + row]
            mean = source.learned.ensemble(obs, action)[0][:, :, :, :4]  # [R, elites, 1, O]
            torch.testing.assert_close(guesses[:, :, :, row], (obs[:, None] + mean).expand(-1, -1, 3, -1))


def test_a_fixed_temperature_stays():
    agent, batch, draws = agent_and_batch("mobile", temperature=0.2, elites=2, guesses=2)
    learned, _, _ = agent_and_batch("mobile", elites=2, guesses=2)
    fixed, free = (a.actor_loss(batch.obs, draws.action) for a in (agent, learned))
    torch.testing.assert_close(free[0] - fixed[0], 0.8 * fixed[1])  # alpha is 1 against 0.2
    agent.update(batch, guesses_of(agent), draws)
    assert not agent.log_alpha.any() and agent.alpha.tolist() == [pytest.approx(0.2)] * 2


def test_what_mobile_cannot_do_is_refused():
    with pytest.raises(UserError, match="--model-mix is not for MOBILE"):
        Args(model_mix=0.5).check_task()
    with pytest.raises(UserError, match="--elites must be at least 2"):
        check(Args(elites=1))
    args = Args()
    assert (args.dynamics_epochs, args.guesses, args.elites, args.hidden) == (30, 10, 5, (256, 256))
    assert (args.actor_lr, args.critic_lr, args.temperature_lr) == (1e-4, 3e-4, 1e-4)


def test_without_a_model_there_are_no_guesses():
    agent, batch, draws = agent_and_batch("mobile", real_ratio=1.0)
    assert isinstance(draws, Draws) and draws.guess is None and draws.guessed_action is None
    assert not agent.update(batch, None, draws)["penalty"].any()


@pytest.mark.parametrize(
    ("dataset", "length", "weight", "temperature"),
    [
        ("d4rl/halfcheetah-random-v2", 5, 0.5, 0.0),
        ("d4rl/hopper-random-v2", 5, 5.0, 0.0),
        ("d4rl/walker2d-random-v2", 5, 2.0, 0.0),
        ("d4rl/halfcheetah-medium-v2", 5, 0.5, 0.0),
        ("d4rl/hopper-medium-v2", 5, 1.5, 0.2),
        ("d4rl/walker2d-medium-v2", 5, 0.5, 0.0),
        ("d4rl/halfcheetah-medium-replay-v2", 5, 0.1, 0.0),
        ("d4rl/hopper-medium-replay-v2", 5, 0.1, 0.0),
        ("d4rl/walker2d-medium-replay-v2", 1, 0.5, 0.0),
        ("d4rl/halfcheetah-medium-expert-v2", 5, 2.0, 0.0),
        ("d4rl/hopper-medium-expert-v2", 5, 1.5, 0.0),
        ("d4rl/walker2d-medium-expert-v2", 1, 1.5, 0.0),
        ("local/expert/walker2d-medium-expert-v0", 1, 1.5, 0.0),
        ("local/hopper-random-expert-v0", 5, 0.5, 0.0),  # a mixture that the table has not
        ("local/random/hopper-random-expert-v0", 5, 0.5, 0.0),
    ],
)
def test_defaults_are_those_of_the_dataset(dataset, length, weight, temperature):
    """Sheet, table 4."""
    args = Args(dataset=dataset)
    assert (args.rollout_length, args.penalty_weight, args.temperature) == (length, weight, temperature)
