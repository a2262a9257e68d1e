"""Layers with a run axis against torch's own."""

import pytest
import torch
from torch import nn

from algos.nn import MLP, Orthogonal, initialise
from algos.optim import Target
from algos.random import generators
from envs.seeding import sub_seed


def reference(seed: int, members: int, sizes: list[int], norm: bool) -> list[nn.Sequential]:
    """What torch's layers draw, network after network, under one seed."""
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
    initialise(net, 3, generators(seeds, "net"))
    x = torch.randn(3, 1, 7, 4)
    y = net(x[:, 0] if members == 1 else x).view(3, members, 7, 2)
    for run, seed in enumerate(seeds):
        for member, single in enumerate(reference(seed, members, [4, 8, 6, 2], norm)):
            torch.testing.assert_close(y[run, member], single(x[run, 0]))


def test_a_run_is_initialised_from_its_own_seed_only():
    alone, together = MLP((1, 2), 4, (8,), 2), MLP((3, 2), 4, (8,), 2)
    initialise(alone, 1, generators([9], "net"))
    initialise(together, 3, generators([5, 9, 2], "net"))
    for a, b in zip(alone.parameters(), together.parameters(), strict=True):
        assert torch.equal(a, b[2:4])


def test_orthogonal_layers_are_orthogonal_times_the_root_of_2():
    """Wide, square, tall and with one output; without bias."""
    net = MLP((3, 2), 4, (8, 8), 1, linear=Orthogonal)
    initialise(net, 3, generators([5, 9, 2], "net"))
    layers = [net.hidden[0][0], net.hidden[1][0], net.out]
    for layer, size in zip(layers, (4, 8, 1), strict=True):
        weight = layer.weight.detach()
        product = weight @ weight.mT if layer is layers[0] else weight.mT @ weight
        torch.testing.assert_close(product, 2 * torch.eye(size).expand(6, size, size), atol=1e-5, rtol=0)
        assert not layer.bias.any()
        assert len({tuple(row.flatten().tolist()) for row in weight}) == 6  # members and runs differ
    alone = MLP((1, 2), 4, (8, 8), 1, linear=Orthogonal)
    initialise(alone, 1, generators([9], "net"))
    for a, b in zip(alone.parameters(), net.parameters(), strict=True):
        assert torch.equal(a, b[2:4])


def test_orthogonal_layers_have_all_directions_and_signs():
    """With a negative diagonal of R as often as with a positive one: uniform over orthogonal matrices."""
    net = MLP((200,), 3, (3,), 1, linear=Orthogonal)
    initialise(net, 200, generators(range(200), "net"))
    weight = net.hidden[0][0].weight.detach()
    assert weight.mean(0).abs().max() < 0.25 and 70 < (weight.det() > 0).sum() < 130


def test_factors_multiply_the_activations_of_their_own_run_and_layer():
    net = MLP((2,), 4, (8, 6), 2)
    initialise(net, 2, generators([0, 1], "net"))
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
    initialise(net, 1, generators([0], "net"))
    x = torch.randn(1, 5, 2)
    first = net.hidden[0][0]
    h = nn.functional.layer_norm(x @ first.weight + first.bias, (3,), eps=0.5)
    torch.testing.assert_close(net(x), torch.relu(h) @ net.out.weight + net.out.bias)


def test_target_follows_by_polyak_averaging():
    net = MLP((2,), 3, (4,), 1)
    initialise(net, 2, generators([0, 1], "net"))
    target = Target(net, 0.25)
    before = [p.clone() for p in target.parameters()]
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1.0)
    target.update()
    for old, new in zip(before, target.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.25)
    assert not any(p.requires_grad for p in target.parameters())
