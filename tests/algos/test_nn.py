"""Layers with a run axis against torch's own."""

import pytest
import torch
from torch import nn

from algos.nn import MLP, initialise
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
    net = MLP(lead, 4, (8, 6), 2, layer_norm=norm)
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
