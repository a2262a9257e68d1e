"""ObGD. The values are those of the stream-x sheet, section 9: of the official classes in float64."""

import pytest
import torch
from torch import nn

from algos.obgd import ObGD
from algos.per_run import PerRun
from algos.sparse import Network

D = torch.float64


class Two(nn.Module):
    """Two parameters of one run, as a module."""

    def __init__(self, runs=1, size=2):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(runs, size, dtype=D))


def feed(obgd, network, delta, direction, reset=0.0):
    before = network.w.detach().clone()
    obgd.step(torch.tensor([delta], dtype=D), [torch.tensor([direction], dtype=D)], torch.tensor([reset], dtype=D))
    return (network.w - before)[0].tolist()


def test_obgd():
    network = Two()
    obgd = ObGD(network, kappa=2.0, trace_decay=0.792)
    assert feed(obgd, network, 0.5, (1, -0.5)) == pytest.approx([1 / 6, -1 / 12])
    assert obgd.trace0[0].tolist() == [1, -0.5]
    assert feed(obgd, network, -2.0, (0.2, 2)) == pytest.approx([-0.191063174, -0.308936826])
    assert obgd.trace0[0].tolist() == pytest.approx([0.992, 1.604])
    assert feed(obgd, network, 3.0, (0.001, 0), reset=1.0) == pytest.approx([0.191213360, 0.308786640])
    assert obgd.trace0[0].tolist() == [0, 0]
    assert feed(obgd, network, 0.01, (0.001, -0.002)) == pytest.approx([1e-5, -2e-5])


def test_adaptive_obgd():
    network = Two()
    obgd = ObGD(network, kappa=2.0, trace_decay=0.792, adaptive=True).double()
    assert feed(obgd, network, 0.5, (1, -0.5)) == pytest.approx([0.125, -0.125], abs=1e-7)
    assert feed(obgd, network, -2.0, (0.2, 2), reset=1.0) == pytest.approx([-0.246533451, -0.253466549])
    assert feed(obgd, network, 3.0, (0.001, 0)) == pytest.approx([0.002539695, 0], abs=1e-9)


def test_clearing_forgets_traces_and_keeps_second_moments():
    network = Two()
    obgd = ObGD(network, kappa=2.0, trace_decay=0.792, adaptive=True).double()
    for delta, direction in ((0.5, (1, -0.5)), (-2.0, (0.2, 2))):
        feed(obgd, network, delta, direction)
    moments = obgd.square0.clone()
    obgd.clear()
    assert (obgd.trace0 == 0).all() and (moments > 0).all()
    assert torch.equal(obgd.square0, moments) and obgd.steps.tolist() == [2]


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("delta", [-3.0, 0.4, 1.0])
@pytest.mark.parametrize("lr", [1.0, 0.25])
def test_a_bounded_step_has_its_length_whatever_the_network(adaptive, delta, lr):
    """And whatever the step size, which the bound takes out again."""
    torch.manual_seed(0)
    network = Two(3, 50)
    obgd = ObGD(network, kappa=3.0, trace_decay=0.792, lr=lr, adaptive=adaptive)
    for _ in range(5):
        before = network.w.detach().clone()
        obgd.step(torch.full((3,), delta, dtype=D), [torch.randn(3, 50, dtype=D)], torch.zeros(3, dtype=D))
    moved = (network.w - before).abs().sum(1)
    torch.testing.assert_close(moved, torch.full((3,), min(abs(delta), 1) / 3, dtype=D).detach())


def test_one_norm_is_of_the_whole_network_and_of_one_run():
    network = nn.ModuleList([Two(2), Two(2)])
    obgd = ObGD(network, kappa=2.0, trace_decay=0.0)
    one = torch.tensor([[1.0, 2.0], [0.0, 0.0]], dtype=D)
    two = torch.tensor([[3.0, 4.0], [0.0, 0.1]], dtype=D)
    bound = obgd.step(torch.ones(2, dtype=D), [one, two], torch.zeros(2, dtype=D))
    assert bound.tolist() == pytest.approx([20.0, 0.2])


@pytest.mark.parametrize(("trace", "expected"), [(0.8, (0.220982143, 0.279017857)), (0.0, (0.0, 0.5))])
def test_two_state_chain(trace, expected):
    network = Two()
    obgd = ObGD(network, kappa=2.0, trace_decay=0.99 * trace)
    states = torch.eye(2, dtype=D)
    for t, (reward, done) in enumerate([(0.0, 0.0), (1.0, 1.0)]):
        value = (network.w * states[t]).sum(1)
        following = 0.99 * (1 - done) * (network.w * states[1]).sum(1)
        obgd.step((reward + following - value).detach(), obgd.gradients(value), torch.tensor([done], dtype=D))
    assert network.w[0].tolist() == pytest.approx(list(expected), abs=1e-8)


def test_small_kappa_is_plain_td_with_traces_and_no_error_is_no_step():
    network, plain = Two(), torch.zeros(2, dtype=D)
    obgd = ObGD(network, kappa=1e-6, trace_decay=0.5, lr=0.1)
    trace = torch.zeros(2, dtype=D)
    for delta, g in ((0.5, (1.0, 2.0)), (-3.0, (0.5, 0.0)), (0.0, (9.0, 9.0))):
        feed(obgd, network, delta, g)
        trace = 0.5 * trace + torch.tensor(g, dtype=D)
        plain += 0.1 * delta * trace
    torch.testing.assert_close(network.w[0].detach(), plain)


def test_all_of_adaptive_obgd_lives_where_its_network_does():
    network = Network(2, (12,), (16,), 1).to("meta")
    assert all(buffer.device.type == "meta" for buffer in ObGD(network, 2.0, 0.8, adaptive=True).buffers())


def test_hyperparameters_may_differ_between_runs():
    """Kappa, decay and step size of each run, against networks with plain numbers."""
    g = torch.Generator().manual_seed(0)
    together = Two(2, 5)
    values = {"kappa": [2.0, 3.0], "trace_decay": [0.8, 0.5], "lr": [1.0, 0.01]}
    obgd = ObGD(together, **{name: PerRun(pair) for name, pair in values.items()})
    alone = [Two(1, 5), Two(1, 5)]
    own = [ObGD(one, **{name: pair[run] for name, pair in values.items()}) for run, one in enumerate(alone)]
    for _ in range(20):
        delta, gradient = torch.randn(2, dtype=D, generator=g), torch.randn(2, 5, dtype=D, generator=g)
        bound = obgd.step(delta, [gradient], torch.zeros(2, dtype=D))
        for run, one in enumerate(own):
            rows = slice(run, run + 1)
            theirs = one.step(delta[rows], [gradient[rows]], torch.zeros(1, dtype=D))
            torch.testing.assert_close(bound[rows], theirs)
    for run, one in enumerate(alone):
        torch.testing.assert_close(together.w[run], one.w[0])
    assert not torch.allclose(alone[0].w, alone[1].w)
