"""IQL against hand-computed values, and what the implicit methods share: the actor, its weights, the order of steps."""

import math

import iql
import pytest
import torch
from offline_data import (
    BATCH,
    Plain,
    at_random,
    batch_of,
    chain_values,
    derivative,
    draws_of,
    learned_chain,
    offline_agent,
    trained_value,
)
from scripts import agent_type, needs_compiler

from algos.compile import compiled

D = torch.tensor([[-6.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0]])
implicit = pytest.mark.parametrize("script", ["iql", "xql", "f_dvl", "recoil"])


def agent(**overrides):
    return offline_agent("iql", **overrides)


def update(one, batch, **draws):
    """One update; ReCOIL's expert has a batch of its own."""
    experts = [batch_of(at_random(16, seed=1))] if isinstance(one, agent_type("recoil")) else []
    return one.update(batch, *experts, draws_of(one, **draws))


class Constant(torch.nn.Module):
    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, *inputs):
        return self.output


# -- the value ---------------------------------------------------------------------------------------------------------


def test_value_loss_by_hand():
    loss = agent(expectile=0.7).value_loss(D)
    torch.testing.assert_close(loss, torch.tensor([[10.8, 4.8, 1.2, 0.3, 0.0, 0.7, 2.8]]))


@pytest.mark.parametrize(("expectile", "value"), [(0.5, 1.5), (0.7, 1.9), (0.9, 2.5)])
def test_a_trained_value_is_the_expectile(expectile, value, float64):
    loss = agent(expectile=expectile).value_loss
    assert trained_value(loss, [0.0, 1.0, 2.0, 3.0]) == pytest.approx(value, abs=1e-3)


@pytest.mark.parametrize(
    ("expectile", "values"),
    [
        (0.5, [0.1738, 0.2125, 0.2983, 0.4505, 0.7027]),
        (0.7, [0.4140, 0.4797, 0.5840, 0.7214, 0.8948]),
        (0.9, [0.5928, 0.6660, 0.7563, 0.8597, 0.9774]),
    ],
)
def test_values_of_the_chain(expectile, values, float64):
    learned = chain_values(agent(expectile=expectile).value_loss)
    torch.testing.assert_close(learned, torch.tensor(values), atol=1e-4, rtol=0)


def test_derivative_of_the_value_loss_by_hand():
    q = torch.tensor([[2.0], [-3.0]])
    slopes = derivative(agent(expectile=0.7).value_loss, q, torch.zeros(2))
    torch.testing.assert_close(slopes, torch.tensor([-2.8, 1.8]))


# -- the actor and the critics -----------------------------------------------------------------------------------------


@implicit
def test_the_actors_weight_is_at_most_100(script):
    one = offline_agent(script, temperature=3.0)
    advantage = torch.tensor([[-1.0, 0.0, 1.0, 2.0], [1e3, -1e3, 0.0, 0.0]])
    weight = torch.tensor([[0.049787, 1.0, 20.085537, 100.0], [100.0, 0.0, 1.0, 1.0]])
    for k in range(4):
        one.actor.log_prob = lambda *_, k=k: -4 * torch.eye(4)[k]  # so that the mean is the weight of row k
        torch.testing.assert_close(one.actor_loss(None, None, advantage, None), weight[:, k], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("script", ["bc", "iql", "xql", "f_dvl", "recoil"])
def test_log_density_by_hand(script):
    one = offline_agent(script)
    one.actor.net = Constant(torch.tensor([[[0.5, -0.2]], [[0.5, -0.2]]]))
    action = torch.tensor([[[0.3, 0.1]], [[0.3, 0.1]]])
    log_prob = one.actor.log_prob(None, action)
    torch.testing.assert_close(log_prob, torch.full((2, 1), -1.895234), atol=1e-6, rtol=0)
    with torch.no_grad():
        one.actor.log_std[0] = 9.0  # counts as 2
        one.actor.log_std[1] = -9.0  # counts as -5
    wide, narrow = one.actor.log_prob(None, action).flatten().tolist()
    squares = (0.3 - math.tanh(0.5)) ** 2 + (0.1 - math.tanh(-0.2)) ** 2
    assert wide == pytest.approx(-0.5 * squares * math.exp(-4) - 4 - math.log(2 * math.pi), abs=1e-5)
    assert narrow == pytest.approx(-0.5 * squares * math.exp(10) + 10 - math.log(2 * math.pi), rel=1e-4)


def test_critic_loss_by_hand():
    one = agent()
    one.critic = Constant(torch.tensor([[[1.0, 30.0], [0.0, -20.0]]]).expand(2, 2, 2))
    loss = one.critic_loss(None, None, torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    torch.testing.assert_close(loss, torch.tensor([450.5 + 200.0, 450.0 + 200.5]))


@implicit
def test_networks_have_the_sizes_of_the_official_code(script):
    one = offline_agent(script, at_random(obs_size=11, act_size=3), seeds=(0,), hidden=(256, 256))
    counts = {name: sum(p.numel() for p in getattr(one, name).parameters()) for name in ("value", "critic", "actor")}
    norm = 1024 if script in ("xql", "f_dvl") else 0
    assert counts == {"value": 69_121 + norm, "critic": 139_778, "actor": 69_638}


@implicit
def test_all_layers_begin_orthogonal_and_targets_as_their_critics(script):
    one = offline_agent(script)
    for net in (one.actor.net, one.critic.net, one.value.net):
        for layer in [*(block[0] for block in net.hidden), net.out]:
            weight = layer.weight.detach()
            tall = weight if weight.shape[-2] >= weight.shape[-1] else weight.mT
            product = tall.mT @ tall
            torch.testing.assert_close(product, 2 * torch.eye(tall.shape[-1]).expand_as(product), atol=1e-5, rtol=0)
            assert not layer.bias.any()
    assert not one.actor.log_std.any()
    for a, b in zip(one.critic.parameters(), one.target_critic.parameters(), strict=True):
        assert torch.equal(a, b)


# -- updates -----------------------------------------------------------------------------------------------------------


def test_three_updates_equal_the_algorithm_written_for_one_run(float64):
    data = at_random()
    one = agent(expectile=0.7, temperature=3.0, dropout=0.3, total_steps=4, lr=0.01, tau=0.1)

    def loss(d):
        return torch.where(d < 0, 0.3, 0.7) * d**2

    plain = Plain(one, 1, loss, decay=4)
    for k in range(3):
        torch.manual_seed(k)
        batch, uniform = batch_of(data, k), torch.rand(2, 2, BATCH, 8)
        plain.update(batch, lambda q, target: (q - target) ** 2, uniform[1])
        one.update(batch, iql.Draws(uniform))
    plain.assert_same(one)


@implicit
def test_a_terminal_transition_does_not_bootstrap(script):
    """The critics' step is the same whatever V says of states after a termination."""
    ends = []
    batch = batch_of(at_random())
    for shift in (0.0, 100.0):
        one = offline_agent(script)
        update(one, batch._replace(terminated=torch.ones(2, BATCH), next_obs=batch.next_obs + shift))
        ends.append(list(one.critic.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@implicit
def test_dropout_is_each_runs_own_and_only_where_the_actor_learns(script):
    def after(uniform):
        one = offline_agent(script, dropout=0.5)
        update(one, batch_of(at_random()), dropout=uniform)
        return one

    uniform = torch.rand(2, 2, BATCH, 8, generator=torch.Generator().manual_seed(0))
    other = uniform.clone()
    other[1] = 1 - other[1]
    first, second = after(uniform), after(other)
    pairs = {
        name: list(zip(getattr(first, name).parameters(), getattr(second, name).parameters(), strict=True))
        for name in ("actor", "critic", "value")
    }
    assert all(torch.equal(a[0], b[0]) for a, b in pairs["actor"])
    assert not all(torch.equal(a[1], b[1]) for a, b in pairs["actor"])
    assert all(torch.equal(a, b) for a, b in pairs["critic"] + pairs["value"])


def test_the_actors_rate_falls_along_a_cosine():
    data, one = at_random(), agent(lr=3e-4, total_steps=4)
    rates = []
    for k in range(6):
        rates.append(float(one.actor_adam.rate()))
        update(one, batch_of(data, k))
    assert rates == pytest.approx([3e-4, 2.56066e-4, 1.5e-4, 4.3934e-5, 0.0, 0.0], rel=1e-4, abs=1e-10)
    assert one.critic_adam.rate() == one.value_adam.rate() == 3e-4


@pytest.mark.parametrize("script", ["bc", "iql", "xql", "f_dvl", "recoil"])
def test_without_decay_the_actors_rate_stays(script):
    one = offline_agent(script, lr=3e-4, total_steps=4, decay="none")
    update(one, batch_of(at_random()))
    assert one.actor_adam.rate() == 3e-4


@pytest.mark.parametrize("expectile", [0.7, pytest.param(0.9, marks=pytest.mark.slow)])
def test_it_learns_to_walk_right(expectile):
    action, value = learned_chain("iql", expectile=expectile)
    assert (action > 0.05).all()
    expected = {0.7: [0.4140, 0.4797, 0.5840, 0.7214, 0.8948], 0.9: [0.5928, 0.6660, 0.7563, 0.8597, 0.9774]}
    torch.testing.assert_close(value, torch.tensor(expected[expectile]).expand(2, 5), atol=0.15, rtol=0)


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "settings"),
    [
        ("d4rl/hopper-medium-v2", ("range", 0.7, 3.0, 0.0)),
        ("d4rl/antmaze-umaze-v0", ("minus_one", 0.9, 10.0, 0.0)),
        ("d4rl/kitchen-mixed-v0", ("none", 0.7, 0.5, 0.1)),
        ("minari/D4RL/pen/human-v2", ("none", 0.7, 0.5, 0.1)),
        ("d4rl/maze2d-umaze-v1", ("none", 0.7, 3.0, 0.0)),
    ],
)
def test_settings_depend_on_the_domain(dataset, settings):
    args = iql.Args(dataset=dataset)
    assert (args.reward, args.expectile, args.temperature, args.dropout) == settings
    assert (args.decay, args.total_steps) == ("cosine", 1_000_000)
    given = {"reward": "none", "expectile": 0.7, "temperature": 3.0, "dropout": 0.0, "decay": "none"}
    args = iql.Args(dataset=dataset, **given)
    assert {name: getattr(args, name) for name in given} == given


@needs_compiler
@pytest.mark.parametrize("script", ["iql", pytest.param("xql", marks=pytest.mark.slow)])
def test_the_compiled_update_is_the_same(script):
    agents, data = [], at_random()
    for compile_on_cpu in (False, True):
        one = offline_agent(script, hidden=(8,), dropout=0.3, total_steps=4)
        step = compiled(one.update, torch.device("cpu"), compile_on_cpu)
        for k in range(3):
            uniform = torch.rand(2, 1, BATCH, 8, generator=torch.Generator().manual_seed(k))
            step(batch_of(data, k), draws_of(one, dropout=uniform))
        agents.append(one)
    for name in ("actor", "critic", "value", "target_critic"):
        for a, b in zip(*(getattr(one, name).parameters() for one in agents), strict=True):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)
