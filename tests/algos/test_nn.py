"""Layers with a run axis against torch's own."""

import pytest
import torch
from scripts import needs_compiler
from torch import nn
from torch.nn.functional import silu

from algos.nn import MLP, LayerNorm, Linear, Orthogonal, dropout_factors, gelu, initialise, use_bf16
from algos.random import generators
from envs.seeding import sub_seed


def reference(seed: int, members: int, sizes: list[int], norm: bool) -> list[nn.Sequential]:
    """Networks of torch's own layers, whose weights are drawn one network after the other from one seed."""
    torch.manual_seed(sub_seed(seed, "net"))
    nets = []
    for _ in range(members):
        layers: list[nn.Module] = []
        for i, o in zip(sizes[:-2], sizes[1:-1], strict=True):
            layers += [nn.Linear(i, o), *([nn.LayerNorm(o)] if norm else []), nn.ReLU()]
        nets.append(nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1])))
    return nets


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("members", [1, 2])
def test_every_run_is_the_single_run_network(members, norm):
    seeds = [5, 9, 2]
    lead = (3,) if members == 1 else (3, members)
    net = MLP(lead, 4, (8, 6), 2, layer_norm=1e-5 if norm else None)
    initialise(net, generators(seeds, "net"))
    x = torch.randn(3, 1, 7, 4)
    y = net(x[:, 0] if members == 1 else x).view(3, members, 7, 2)
    for run, seed in enumerate(seeds):
        for member, single in enumerate(reference(seed, members, [4, 8, 6, 2], norm)):
            torch.testing.assert_close(y[run, member], single(x[run, 0]))


def test_a_run_is_initialised_from_its_own_seed_only():
    alone, together = MLP((1, 2), 4, (8,), 2), MLP((3, 2), 4, (8,), 2)
    initialise(alone, generators([9], "net"))
    initialise(together, generators([5, 9, 2], "net"))
    for a, b in zip(alone.parameters(), together.parameters(), strict=True):
        assert torch.equal(a[0], b[1])


@needs_compiler
def test_bfloat16_is_for_compiled_hidden_layers_with_many_weights():
    net = MLP((1,), 4, (64, 64), 1, linear=Orthogonal)
    initialise(net, generators([0], "net"))
    x = torch.randn(1, 9, 4)
    exact = net(x)
    use_bf16(net)
    assert torch.equal(net(x), exact)  # eager
    (first,), (second,) = net.hidden
    assert (first.bf16, second.bf16, net.out.bf16) == (False, True, False)  # 4 x 64, 64 x 64, 64 x 1 weights

    def loss(weight):
        return torch.func.functional_call(second, {"weight": weight}, torch.relu(first(x))).square().sum()

    rounded = torch.compile(torch.func.grad(loss))(second.weight)
    h = torch.relu(first(x))
    product = (h.bfloat16() @ second.weight.bfloat16()).float()
    expected = (h.bfloat16().mT @ (2 * product).bfloat16()).float()
    torch.testing.assert_close(rounded, expected, atol=1e-6, rtol=1e-5)
    assert rounded.dtype == torch.float32
    assert not torch.allclose(rounded, h.mT @ (2 * (h @ second.weight)), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"layer_norm": 1e-5}, {"norm_after": 1e-6, "activation": gelu}])
def test_the_first_member_alone_gives_what_it_gives_among_others(settings, float64):
    net = MLP((3, 2), 4, (5, 6), 2, **settings)
    initialise(net, generators([0, 1, 2], "net"))
    x = torch.randn(3, 7, 4, requires_grad=True)
    alone, among = net.first(x), net(x[:, None])[:, 0]
    assert alone.shape == (3, 7, 2)
    torch.testing.assert_close(alone, among, atol=1e-12, rtol=0)
    of_x = [torch.autograd.grad(y.square().sum(), x)[0] for y in (alone, among)]
    torch.testing.assert_close(*of_x, atol=1e-12, rtol=0)


@needs_compiler
def test_a_network_in_bfloat16_rounds_what_enters_its_large_layers_and_what_leaves_them():
    """Forwards, and backwards to its weights, and in the gradient of its value."""
    net = MLP((1,), 4, (64, 64, 64), 1, linear=Orthogonal)
    initialise(net, generators([0], "net"))
    use_bf16(net)
    x = torch.randn(1, 9, 4)

    def rounded(x):
        return x.bfloat16().float()

    (first,), (second,), (third,) = net.hidden
    h1 = torch.relu(first(x))
    h2 = torch.relu(rounded(rounded(h1) @ rounded(second.weight)) + second.bias)
    h3 = torch.relu(rounded(rounded(h2) @ rounded(third.weight)) + third.bias)
    value = net.out(h3)
    torch.testing.assert_close(torch.compile(net)(x), value, atol=1e-6, rtol=1e-5)

    g3 = rounded(net.out.weight.mT * (h3 > 0))
    g2 = rounded(rounded(g3 @ rounded(third.weight).mT) * (h2 > 0))
    g1 = rounded(g2 @ rounded(second.weight).mT) * (h1 > 0)

    def loss(weight):
        return torch.func.functional_call(net, {"hidden.2.0.weight": weight}, x).sum()

    found = torch.compile(torch.func.grad(loss))(third.weight)
    torch.testing.assert_close(found, rounded(rounded(h2).mT @ g3), atol=1e-4, rtol=1e-2)
    assert torch.equal(found, rounded(found))
    value_too, gradient = torch.compile(net.with_gradient)(x, 3)
    torch.testing.assert_close(value_too, value.squeeze(-1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(gradient, g1 @ first.weight[:, -3:].mT, atol=1e-6, rtol=1e-5)


@needs_compiler
def test_the_layers_of_an_ensemble_are_rounded_likewise():
    """Sigmoid linear units, as learned dynamics have them; what leaves the network is not rounded."""
    net = MLP((1,), 4, (64, 64), 2, silu, linear=Orthogonal)
    initialise(net, generators([0], "net"))
    use_bf16(net)
    x = torch.randn(1, 9, 4)
    (first,), (second,) = net.hidden
    h = silu(first(x)).bfloat16().float() @ second.weight.bfloat16().float()
    expected = net.out(silu(h.bfloat16().float() + second.bias))
    torch.testing.assert_close(torch.compile(net)(x), expected, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(net(x), expected, atol=1e-6, rtol=1e-5)


def test_small_layers_are_not_rounded():
    assert not use_bf16(MLP((1,), 4, (63, 64), 1)) and use_bf16(MLP((1,), 4, (64, 64), 1))


def test_without_instructions_for_bfloat16_no_layer_is_rounded_though_large_ones_are_counted():
    net = MLP((1,), 4, (64, 64), 1)
    assert use_bf16(net) and use_bf16(net, False) and not use_bf16(MLP((1,), 4, (63, 64), 1), False)
    assert not any(block[0].bf16 for block in net.hidden)


def test_orthogonal_layers_are_orthogonal_times_the_root_of_2():
    """Wide, square, tall and with one output; without bias."""
    net = MLP((3, 2), 4, (8, 8), 1, linear=Orthogonal)
    initialise(net, generators([5, 9, 2], "net"))
    layers = [net.hidden[0][0], net.hidden[1][0], net.out]
    for layer, size in zip(layers, (4, 8, 1), strict=True):
        weight = layer.weight.detach().flatten(0, 1)
        product = weight @ weight.mT if layer is layers[0] else weight.mT @ weight
        torch.testing.assert_close(product, 2 * torch.eye(size).expand(6, size, size), atol=1e-5, rtol=0)
        assert not layer.bias.any()
        assert len({tuple(row.flatten().tolist()) for row in weight}) == 6  # members and runs differ
    alone = MLP((1, 2), 4, (8, 8), 1, linear=Orthogonal)
    initialise(alone, generators([9], "net"))
    for a, b in zip(alone.parameters(), net.parameters(), strict=True):
        assert torch.equal(a[0], b[1])


def test_orthogonal_layers_have_all_directions_and_signs():
    """The diagonal of R is negative as often as positive: the layers are uniform over orthogonal matrices."""
    net = MLP((200,), 3, (3,), 1, linear=Orthogonal)
    initialise(net, generators(range(200), "net"))
    weight = net.hidden[0][0].weight.detach()
    assert weight.mean(0).abs().max() < 0.25 and 70 < (weight.det() > 0).sum() < 130


def test_factors_multiply_the_activations_of_their_own_run_and_layer():
    net = MLP((2,), 4, (8, 6), 2)
    initialise(net, generators([0, 1], "net"))
    x = torch.randn(2, 7, 4)
    factors = [torch.rand(2, 7, 8), torch.rand(2, 7, 8)]  # as wide as the widest layer
    y = net(x, factors)
    for run in range(2):
        first, second = (layer[0] for layer in net.hidden)
        h = torch.relu(x[run] @ first.weight[run] + first.bias[run]) * factors[0][run]
        h = torch.relu(h @ second.weight[run] + second.bias[run]) * factors[1][run, :, :6]
        torch.testing.assert_close(y[run], h @ net.out.weight[run] + net.out.bias[run])
    ones = [torch.ones(2, 7, 8)] * 2
    assert torch.equal(net(x, ones), net(x))


def test_layer_normalisation_takes_its_epsilon():
    net = MLP((1,), 2, (3,), 1, layer_norm=0.5)
    initialise(net, generators([0], "net"))
    x = torch.randn(1, 5, 2)
    first = net.hidden[0][0]
    h = nn.functional.layer_norm(x @ first.weight + first.bias, (3,), eps=0.5)
    torch.testing.assert_close(net(x), torch.relu(h) @ net.out.weight + net.out.bias)


def test_modules_of_other_members_and_runs_stand_side_by_side():
    """Each layer knows its lead axes: a twin critic and a single actor in one module, in any order."""

    def pair(runs):
        return nn.ModuleDict({"actor": MLP((runs,), 4, (8,), 2), "critic": MLP((runs, 2), 4, (8,), 1)})

    alone, together = pair(1), pair(3)
    initialise(alone, generators([9], "net"))
    initialise(together, generators([5, 9, 2], "net"))
    for a, b in zip(alone.parameters(), together.parameters(), strict=True):
        assert torch.equal(a[0], b[1])
    critic = together["critic"].out.weight
    assert not torch.equal(critic[0, 0], critic[0, 1])


def test_parameters_have_the_run_axis_first_and_ensembles_their_members_next():
    assert Linear((3,), 4, 5).weight.shape == (3, 4, 5) and Linear((3, 2), 4, 5).bias.shape == (3, 2, 1, 5)
    assert LayerNorm((3, 2), 5).weight.shape == (3, 2, 1, 5)
    assert MLP((3, 2), 4, (8,), 1)(torch.randn(3, 1, 7, 4)).shape == (3, 2, 7, 1)


def test_dropout_leaves_units_out_with_its_rate_and_keeps_the_mean():
    uniform = torch.rand(2, 3, 50, 40, generator=torch.Generator().manual_seed(0))
    factors = dropout_factors(uniform, 0.25)
    assert len(factors) == 3 and factors[0].shape == (2, 50, 40)
    assert torch.stack(factors).unique().tolist() == pytest.approx([0, 4 / 3])
    assert abs(torch.stack(factors).mean() - 1) < 0.02
    assert ((uniform[:, 1] >= 0.25) == (factors[1] > 0)).all()
    assert dropout_factors(None, 0.25) is None
