"""TRPO against the code of stable-baselines3-contrib, and what is ours."""

from itertools import pairwise

import pandas as pd
import pytest
import torch
from on_policy_data import prints, set_layers, wave
from scripts import Feed, agent_of, differing, state_of
from trpo import TRPO, conjugate_gradients, dot

from algos.on_policy import Samples, gaussian_kl
from algos.per_run import PerRun
from envs import Task

TASK = Task("Made-v0", (3,), 2, False, (-2.0, -2.0), (2.0, 2.0), 50)
T = 16
# The policy after one call of `train` of TRPO in sb3-contrib 2.9.2 on these arrays, in float64. It averages the
# divergence over the two dimensions of an action, so that our delta and damping are twice as large, and its conjugate
# gradients were made to start at 0. Where the first step is taken, nothing else differs.
CONTRIB = [
    25.276389959777482, 0.2646724209961451, 539.1379526100079, -2.525686753254147, 1.3632914362794901,
    -0.0807777412823262,
]  # fmt: skip
CONTRIB_LOG_STD = (-0.2974874775858185, 0.1971076628085822)


def agent_and_samples(runs: tuple[int, ...] = (0,), **overrides) -> tuple[TRPO, Samples, torch.Tensor]:
    overrides = {"curvature_every": 1, "cg_steps": 5} | overrides
    agent = agent_of("trpo", seeds=runs, task=TASK, hidden=(64, 64), **overrides)
    fields = []
    for place, run in enumerate(runs):
        set_layers(agent.actor.net, place, run)
        agent.actor.log_std.data[place] = torch.tensor([[-0.3, 0.2]])
        fields.append((2 * wave(T, 3, phase=run), wave(T, 2, phase=1.0 + run), wave(T, phase=2.0 + run)))
    obs, action, advantage = map(torch.stack, zip(*fields, strict=True))
    log_prob, _ = agent.actor.log_prob_and_entropy(obs, action)
    samples = Samples(obs, action, log_prob.detach(), 0 * advantage, advantage, advantage)
    return agent, samples, samples.normalised_advantage()


def test_a_step_that_is_taken_at_once_is_stable_baselines3_contribs(float64):
    agent, samples, advantage = agent_and_samples(delta=0.02, damping=0.2)
    metrics = agent.policy_step(samples, advantage)
    assert metrics["step_length"].item() == 1.0
    assert prints(agent.actor.net, 0) == pytest.approx(CONTRIB, abs=1e-9)
    assert agent.actor.log_std[0, 0].tolist() == pytest.approx(CONTRIB_LOG_STD, abs=1e-9)


def test_conjugate_gradients_solve_each_run_apart(float64):
    root = torch.stack([wave(5, 5, phase=p) + 3 * torch.eye(5) for p in (0.0, 1.0, 2.0)])
    matrix, b = root.mT @ root, wave(3, 5, phase=4.0)
    b[1] *= 1e-7  # converged from the start, so that it stays at 0
    x = conjugate_gradients(lambda v: (matrix @ v[..., None]).squeeze(-1), b, 5)
    expected = torch.linalg.solve(matrix, b)
    torch.testing.assert_close(x[[0, 2]], expected[[0, 2]], atol=1e-8, rtol=1e-6)
    assert not x[1].any()


def test_the_step_has_the_length_of_the_trust_region_in_the_curvature(float64):
    """Half of x (H + damping) x is delta, and half of x H x is the divergence of a small step."""
    agent, samples, advantage = agent_and_samples(delta=1e-6)
    step = agent.natural_step(samples, advantage)
    start = [p.clone() for p in agent.actor.parameters()]
    mean, log_std = agent.actor(samples.obs)
    old = mean.detach(), log_std.detach().clone()
    agent.move(start, step)
    divergence = agent.divergence(old, agent.actor(samples.obs)) + 0.5 * 0.1 * dot(step, step)
    assert divergence.item() == pytest.approx(1e-6, rel=0.01)


def test_the_divergence_is_from_old_to_new(float64):
    agent, samples, _ = agent_and_samples()
    old = torch.zeros(1, T, 2), torch.zeros(1, 1, 2)
    new = agent.actor(samples.obs)
    expected = gaussian_kl(*old, *new).mean(-1)
    assert agent.divergence(old, new).item() == expected.item()
    assert expected.item() != pytest.approx(gaussian_kl(*new, *old).mean().item(), rel=1e-3)


def test_the_line_search_of_each_run_is_its_own(float64):
    """With a very large trust region only a part of the step is good."""
    runs = (0, 1, 2)
    deltas = {0: 0.01, 1: 500.0, 2: 1.0}
    together, samples, advantage = agent_and_samples(runs)
    together.args.delta = PerRun([deltas[run] for run in runs])
    lengths = together.policy_step(samples, advantage)["step_length"]
    for run in runs:
        alone, own, its_advantage = agent_and_samples((run,), delta=deltas[run])
        assert alone.policy_step(own, its_advantage)["step_length"].item() == lengths[run].item()
        assert prints(together.actor.net, run) == pytest.approx(prints(alone.actor.net, 0), abs=1e-10)
    assert lengths.tolist() == [1.0, 0.25, 1.0]


def test_an_accepted_step_keeps_to_the_trust_region_and_is_no_worse(float64):
    for delta in (0.01, 0.5, 5.0):
        agent, samples, advantage = agent_and_samples(delta=delta)
        before = agent.surrogate(agent.actor(samples.obs), samples, advantage)
        metrics = agent.policy_step(samples, advantage)
        assert metrics["step_length"] > 0
        assert metrics["kl"] <= 1.5 * delta
        assert metrics["surrogate"] >= before


@pytest.mark.parametrize(
    ("slack", "kl", "surrogate", "length"),
    [
        ({}, [1.49], [0.0], 1.0),
        ({}, [1.51, 1.49], [0.0, 0.0], 0.5),
        ({"slack": 1.0}, [1.01, 0.99], [0.0, 0.0], 0.5),
        ({}, [0.0, 0.0, 0.0], [-1e-9, -1e-9, 0.0], 0.25),
        ({}, [9.0] * 9 + [1.0], [0.0] * 10, 0.5**9),
        ({}, [9.0] * 10 + [1.0], [0.0] * 11, 0.0),
    ],
    ids=["within 1.5 delta", "beyond it", "beyond delta without slack", "worse", "the tenth trial", "an eleventh"],
)
def test_the_search_takes_the_first_of_ten_steps_within_its_slack_that_is_no_worse(
    slack, kl, surrogate, length, float64
):
    agent, samples, advantage = agent_and_samples(delta=1.0, **slack)
    kls, surrogates = ([torch.tensor([x]) for x in [*values, *values[-1:] * 11]] for values in (kl, surrogate))
    agent.natural_step = lambda *_: torch.ones(1, sum(p[0].numel() for p in agent.actor.parameters()))
    agent.divergence = lambda *_: kls.pop(0)
    surrogates.insert(0, torch.zeros(1))  # before the step
    agent.surrogate = lambda *_: surrogates.pop(0)
    assert agent.policy_step(samples, advantage)["step_length"].item() == length


def test_the_curvature_comes_from_every_nth_step_of_all_environments(float64):
    agent, samples, advantage = agent_and_samples(curvature_every=3, num_envs=2)
    seen, divergence = [], agent.divergence
    agent.divergence = lambda old, new: seen.append(new) or divergence(old, new)
    agent.natural_step(samples, advantage)
    assert torch.equal(seen[0][0], agent.actor(samples.obs[:, [0, 1, 6, 7, 12, 13]])[0])


def test_the_critics_loss_is_the_mean_squared_error(float64):
    agent, samples, _ = agent_and_samples()
    expected = (agent.critic(samples.obs) - samples.returns).square().mean()
    assert agent.value_step(samples)["value_loss"].item() == pytest.approx(expected.item())


def parameters(agent):
    """A copy of the critic's."""
    return [p.detach().clone() for p in agent.critic.parameters()]


def test_the_critic_takes_a_step_on_every_minibatch_of_every_epoch(float64):
    """Four minibatches in two epochs are eight steps of Adam; the metrics are means over the last epoch's."""
    agent = agent_of("trpo", critic_epochs=2, horizon=8, num_envs=2, batch_size=4)
    rollout, draws = next(Feed(agent))
    before = agent.samples(rollout).value
    seen, step, weights = [], agent.value_step, [parameters(agent)]

    def watched(batch):
        seen.append(step(batch))
        weights.append(parameters(agent))
        return seen[-1]

    agent.value_step = watched
    metrics = agent.update(rollout, draws)
    assert len(seen) == 8
    assert all(not torch.equal(a, b) for old, new in pairwise(weights) for a, b in zip(old, new, strict=True))
    for name in ("value_loss", "value"):
        torch.testing.assert_close(metrics[name], torch.stack([one[name] for one in seen[-4:]]).mean(0))
    torch.testing.assert_close(metrics["value"], before.mean(-1))


def test_the_surrogate_and_the_entropy_are_means_over_all_samples(float64):
    """At the old policy all ratios are 1; the surrogate is then the mean advantage."""
    agent, samples, _ = agent_and_samples((0, 1))
    advantage = torch.rand_like(samples.advantage)
    torch.testing.assert_close(agent.surrogate(agent.actor(samples.obs), samples, advantage), advantage.mean(-1))
    metrics = agent.policy_step(samples, advantage)
    _, entropy = agent.actor.log_prob_and_entropy(samples.obs, samples.action)
    torch.testing.assert_close(metrics["entropy"], entropy.mean(-1))
    surrogate = agent.surrogate(agent.actor(samples.obs), samples, advantage)
    torch.testing.assert_close(metrics["surrogate"], surrogate)


def test_a_run_without_a_good_step_stays_where_it_is(float64, monkeypatch):
    agent, samples, advantage = agent_and_samples((0, 1))
    natural = agent.natural_step

    def uphill(*given):
        step = natural(*given)
        step[1] *= -1  # every length of it is worse
        return step

    monkeypatch.setattr(agent, "natural_step", uphill)
    before = prints(agent.actor.net, 0), prints(agent.actor.net, 1)
    metrics = agent.policy_step(samples, advantage)
    assert metrics["step_length"].tolist() == [1.0, 0.0]
    assert prints(agent.actor.net, 1) == before[1]
    assert prints(agent.actor.net, 0) != before[0]


def test_a_broken_run_does_not_move_and_harms_no_other(float64):
    agent, samples, advantage = agent_and_samples((0, 1))
    advantage[1, 3] = float("nan")
    before = state_of(agent)
    agent.policy_step(samples, advantage)
    alone, own, its_advantage = agent_and_samples((0,))
    alone.policy_step(own, its_advantage)
    assert prints(agent.actor.net, 0) == pytest.approx(prints(alone.actor.net, 0), abs=1e-10)
    assert not differing(before, state_of(agent), 1) and differing(before, state_of(agent), 0)


@pytest.mark.slow
def test_it_learns_to_balance_a_pole(train):
    """Of five other seeds, all had episodes of 1,000 steps after 25,000 steps."""
    flags = {"env_id": "InvertedPendulum-v5", "eval_episodes": 0, "compile": False, "threads": 1}
    result = train("trpo", seeds=("0:4",), total_steps=30_720, eval_every=2_048, **flags)
    means = pd.read_parquet(result.folder / "eval.parquet").groupby(["seed", "step"])["return"].mean().unstack()
    assert (means[2_048] < 50).all()
    assert (means.max(1) > 900).sum() >= 3


def test_inner_products_are_per_run():
    a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    assert dot(a, b).tolist() == [[3.0], [8.0]]
