"""XQL against hand-computed values, and the actions that its value learns from."""

import math

import pytest
import torch
import xql
from offline_data import (
    BATCH,
    Plain,
    at_random,
    batch_of,
    chain_values,
    derivative,
    draws_of,
    huber,
    learned_chain,
    offline_agent,
    trained_value,
)

BY_HAND = [0.754075, 0.417667, 0.135335, 0.039190, 0.0, 0.054711, 0.264241]
D = torch.tensor([[-6.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0]])


def agent(**overrides):
    return offline_agent("xql", **overrides)


def test_value_loss_by_hand():
    loss = agent(beta=2.0, clip=7.0).value_loss(D)
    torch.testing.assert_close(loss, torch.tensor([BY_HAND]), atol=1e-6, rtol=0)
    assert loss.mean().item() == pytest.approx(0.2378885, abs=1e-6)


def test_a_clipped_sample_has_no_gradient():
    loss = agent(beta=1.0, clip=5.0).value_loss
    advantage = torch.tensor([[10.0, 0.0]], requires_grad=True)
    value = loss(advantage)
    torch.testing.assert_close(value.detach(), torch.tensor([[0.959572, 0.0]]), atol=1e-6, rtol=0)
    assert torch.autograd.grad(value[0, 0], advantage)[0].eq(0).all()
    below = derivative(loss, torch.tensor([[-10.0]]), torch.zeros(1)).item()  # from below nothing is clipped
    assert below == pytest.approx((1 - math.exp(-10)) * math.e, rel=1e-5)


def test_the_greatest_of_a_batch_is_each_runs_own_and_at_least_minus_1():
    loss = agent(beta=1.0, clip=7.0).value_loss
    together = loss(torch.tensor([[5.0, 0.0], [-3.0, -2.0]]))
    torch.testing.assert_close(together[0], loss(torch.tensor([[5.0, 0.0]]))[0])
    expected = [math.exp(z + 1) - z * math.e - math.e for z in (-3.0, -2.0)]
    torch.testing.assert_close(together[1], torch.tensor(expected))


def test_the_divisor_has_no_gradient():
    advantage = torch.tensor([[2.0, 1.0]], requires_grad=True)
    gradient = torch.autograd.grad(agent(beta=1.0).value_loss(advantage).sum(), advantage)[0]
    scale = math.exp(-2.0)
    torch.testing.assert_close(gradient, torch.tensor([[scale * (math.exp(2) - 1), scale * (math.exp(1) - 1)]]))


def test_it_is_f_dvl_with_reverse_kl(float64):
    """f*(z) - z, f* being the conjugate of t log t - t + 1, which is found here by search; each batch has a divisor."""
    z = torch.tensor([[-3.0, -1.0, 0.5, 1.5], [-2.0, -1.5, -1.2, -1.1]])
    t = torch.linspace(1e-4, 6, 600_000)
    conjugate = torch.stack([(t * x - (t * t.log() - t + 1)).amax() for x in z.flatten()]).view_as(z)
    divisor = z.amax(-1, keepdim=True).clamp(min=-1).exp()
    torch.testing.assert_close(agent(beta=2.0).value_loss(2 * z) * divisor, conjugate - z, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("beta", "value"), [(1.0, 2.053895), (5.0, 1.624299), (1000.0, 1.5)])
def test_a_trained_value_is_the_log_of_the_mean_exponential(beta, value, float64):
    """A high beta makes it the mean, which is IQL's value at an expectile of 0.5."""
    assert trained_value(agent(beta=beta).value_loss, [0.0, 1.0, 2.0, 3.0]) == pytest.approx(value, abs=1e-3)


@pytest.mark.parametrize(
    ("beta", "values"),
    [
        (1.0, [0.2143, 0.2615, 0.3618, 0.5267, 0.7712]),
        (0.1, [0.4407, 0.5235, 0.6418, 0.7796, 0.9356]),
    ],
)
def test_values_of_the_chain(beta, values, float64):
    torch.testing.assert_close(chain_values(agent(beta=beta).value_loss), torch.tensor(values), atol=1e-4, rtol=0)


@pytest.mark.parametrize("script", ["xql", "f_dvl"])
def test_critic_loss_is_a_huber_loss_by_hand(script):
    one = offline_agent(script)
    errors = torch.tensor([[1.0, 20.0, 30.0], [0.0, -30.0, 0.0]])
    one.critic.forward = lambda obs, action: errors.expand(2, 2, 3)
    loss = one.critic_loss(None, None, torch.zeros(2, 3))
    torch.testing.assert_close(loss, torch.full((2,), (0.5 + 200 + 400) / 3 + 400 / 3))


def test_three_updates_equal_the_algorithm_written_for_one_run(float64):
    """Everything is on: V learns twice per update, from noisy and from random actions too."""
    data = at_random()
    one = agent(
        beta=0.5, clip=2.0, noise=0.4, random_actions=2, value_updates=2, dropout=0.3, total_steps=4, lr=0.01, tau=0.1
    )

    def loss(d):
        z = torch.minimum(d / 0.5, torch.tensor(2.0))
        m = max(z.max().item(), -1.0)
        return torch.exp(z - m) - z * math.exp(-m) - math.exp(-m)

    plain = Plain(one, 1, loss, decay=4)
    for k in range(3):
        torch.manual_seed(k)
        batch, uniform = batch_of(data, k), torch.rand(2, 2, BATCH, 8)
        normal, other = torch.randn(2, BATCH, 2), torch.rand(2, 2, BATCH, 2)
        noisy = (batch.action[1] + (0.4 * normal[1]).clamp(-0.5, 0.5)).clamp(-1, 1)
        value = {
            "obs": torch.cat([batch.obs[1]] * 3),
            "action": torch.cat([noisy, 2 * other[1, 0] - 1, 2 * other[1, 1] - 1]),
            "times": 2,
        }
        plain.update(batch, huber, uniform[1], **value)
        one.update(batch, xql.Draws(uniform, normal, other))
    plain.assert_same(one)


def test_values_learn_from_the_datas_noisy_and_random_actions():
    torch.manual_seed(0)
    one, batch = agent(noise=0.1), batch_of(at_random())
    q = one.target_critic(batch.obs, batch.action).amin(1)
    assert torch.equal(one.augmented(batch, q, xql.Draws(None, None, None)), q[:, None])
    normal, other = torch.full((2, BATCH, 2), 20.0), torch.rand(2, 3, BATCH, 2)
    noisy = one.target_critic(batch.obs, (batch.action + 0.5).clamp(max=1)).amin(1)  # 0.1 times 20 is clipped at 0.5
    torch.testing.assert_close(one.augmented(batch, q, xql.Draws(None, normal, None)), noisy[:, None])
    both = one.augmented(batch, q, xql.Draws(None, None, other))
    assert both.shape == (2, 4, BATCH) and torch.equal(both[:, 0], q)
    for k in range(3):
        torch.testing.assert_close(both[:, 1 + k], one.target_critic(batch.obs, 2 * other[:, k] - 1).amin(1))


def test_random_actions_reach_both_bounds():
    """The random numbers are in [0, 1), which becomes [-1, 1)."""
    one, seen = agent(), []
    one.target_critic.forward = lambda obs, action: seen.append(action) or torch.zeros(2, 2, action.shape[1])
    ends = torch.tensor([0.0, 1.0]).expand(2, 1, BATCH, 2)
    one.augmented(batch_of(at_random()), torch.zeros(2, BATCH), xql.Draws(None, None, ends))
    assert torch.equal(seen[0], torch.tensor([-1.0, 1.0]).expand(2, BATCH, 2))


@pytest.mark.parametrize("script", ["iql", "xql", "f_dvl"])
def test_metrics_are_of_the_value_that_has_learned_and_of_the_targets_before(script):
    one, batch = offline_agent(script), batch_of(at_random())
    q = one.target_critic(batch.obs, batch.action).amin(1)
    metrics = one.update(batch, draws_of(one))
    value = one.value(batch.obs).detach()
    torch.testing.assert_close(metrics["value"], value.mean(-1))
    torch.testing.assert_close(metrics["advantage"], (q - value).mean(-1).detach())


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, set()),
        ({"dropout": 0.1}, {"dropout"}),
        ({"noise": 0.1}, {"noise"}),
        ({"random_actions": 3}, {"actions"}),
    ],
)
def test_only_the_random_numbers_that_are_used_are_drawn(settings, names):
    draws = draws_of(agent(**settings))._asdict()
    assert {name for name, numbers in draws.items() if numbers is not None} == names
    shapes = {"dropout": (2, 2, BATCH, 8), "noise": (2, BATCH, 2), "actions": (2, 3, BATCH, 2)}
    assert all(draws[name].shape == shapes[name] for name in names)


def test_it_learns_to_walk_right():
    action, value = learned_chain("xql", beta=0.1)
    assert (action > 0.05).all()
    expected = torch.tensor([0.4407, 0.5235, 0.6418, 0.7796, 0.9356])
    torch.testing.assert_close(value, expected.expand(2, 5), atol=0.15, rtol=0)


# -- settings ----------------------------------------------------------------------------------------------------------

# beta, clip, batch size, random actions, noise, steps of V: Extreme Q-Learning, the scripts of its repository
SCRIPTS = {
    "halfcheetah-medium-v2": (1, 7, 1024, 0, 0.1, 1),
    "hopper-medium-v2": (5, 7, 1024, 0, 0, 1),
    "walker2d-medium-v2": (10, 7, 1024, 0, 0, 1),
    "halfcheetah-medium-replay-v2": (1, 5, 256, 0, 0, 1),
    "hopper-medium-replay-v2": (2, 7, 256, 0, 0, 1),
    "walker2d-medium-replay-v2": (5, 5, 1024, 0, 0, 1),
    "halfcheetah-medium-expert-v2": (1, 5, 1024, 0, 0, 1),
    "hopper-medium-expert-v2": (2, 7, 1024, 1, 0, 1),
    "walker2d-medium-expert-v2": (2, 5, 256, 0, 0, 1),
    "antmaze-umaze-v0": (2, 7, 256, 0, 0, 1),
    "antmaze-umaze-diverse-v0": (5, 7, 256, 1, 0, 1),
    "antmaze-medium-play-v0": (0.8, 5, 256, 0, 0, 1),
    "antmaze-medium-diverse-v0": (0.6, 7, 256, 0, 0, 4),
    "antmaze-large-play-v0": (0.6, 5, 1024, 0, 0, 1),
    "antmaze-large-diverse-v0": (0.55, 5, 1024, 0, 0, 1),
    "kitchen-complete-v0": (2, 7, 1024, 0, 0, 1),
    "kitchen-partial-v0": (5, 7, 1024, 0, 0, 1),
    "kitchen-mixed-v0": (8, 7, 1024, 0, 0, 1),
}
NAMES = ("beta", "clip", "batch_size", "random_actions", "noise", "value_updates")


def test_settings_of_each_dataset_are_those_of_the_official_scripts():
    assert set(xql.DATASETS) == set(SCRIPTS)
    for dataset, settings in SCRIPTS.items():
        args = xql.Args(dataset=f"d4rl/{dataset}")
        assert tuple(getattr(args, name) for name in NAMES) == settings, dataset


@pytest.mark.parametrize(
    ("dataset", "beta", "temperature", "dropout", "decay"),
    [
        ("d4rl/hopper-medium-v2", 2.0, 3.0, 0.0, "cosine"),
        ("d4rl/antmaze-umaze-v0", 0.6, 10.0, 0.0, "none"),
        ("d4rl/kitchen-mixed-v0", 5.0, 0.5, 0.1, "cosine"),
        ("d4rl/pen-human-v0", 2.0, 0.5, 0.1, "cosine"),
    ],
)
def test_consistent_settings_depend_on_the_domain(dataset, beta, temperature, dropout, decay):
    args = xql.Args(dataset=dataset, consistent=True)
    assert tuple(getattr(args, name) for name in NAMES) == (beta, 7.0, 256, 0, 0.0, 1)
    assert (args.temperature, args.dropout, args.decay) == (temperature, dropout, decay)


@pytest.mark.parametrize("consistent", [False, True])
@pytest.mark.parametrize("dataset", ["halfcheetah-medium-v2", "antmaze-medium-diverse-v0", "kitchen-mixed-v0"])
def test_a_value_that_is_given_wins(dataset, consistent):
    """Even one that is the default of another dataset."""
    given = {"beta": 2.0, "clip": 7.0, "batch_size": 256, "random_actions": 0, "noise": 0.0, "value_updates": 1}
    args = xql.Args(dataset=f"d4rl/{dataset}", consistent=consistent, decay="cosine", **given)
    assert {name: getattr(args, name) for name in given} == given and args.decay == "cosine"


def test_a_file_with_the_name_of_d4rls_has_its_settings():
    assert xql.Args(dataset="data/hopper_medium-v2.hdf5").beta == 5.0
    assert xql.Args(dataset="data/medium_hopper.hdf5").beta == 2.0
