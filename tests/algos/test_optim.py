"""Adam against torch's, alone and with runs that differ; targets."""

import math

import pytest
import torch
from torch import nn

from algos.nn import MLP, initialise
from algos.optim import Adam, Target, cosine, linear
from algos.per_run import PerRun
from algos.random import generators

SHAPES = [(3, 4, 5), (3, 7)]


def parameters(generator, runs=3):
    return [torch.randn(runs, *shape[1:], generator=generator, requires_grad=True) for shape in SHAPES]


@pytest.fixture(params=["kernel", "formula"])
def way(request, monkeypatch):
    """The way in which steps are made: by torch's fused kernel, or by the formula that a compiler traces."""
    if request.param == "formula":
        monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)
    return request.param


def of_run(values, run):
    return values[run] if isinstance(values, list) else values


def check(
    lr=0.01,
    max_norm=None,
    decay=0,
    active=lambda k, run: True,
    masked=False,
    rounding=1e-8,
):
    """30 steps against torch's optimiser of each run by itself, whose rate and clipping are set by hand."""
    generator = torch.Generator().manual_seed(0)
    ours = parameters(generator)

    def wrap(x):
        return PerRun(x) if isinstance(x, list) else x

    adam = Adam(ours, wrap(lr), max_norm=wrap(max_norm), schedule=cosine(decay) if decay else None)
    theirs, references = [], []
    for run in range(3):
        own = [p[run].detach().clone().requires_grad_() for p in ours]
        theirs.append(own)
        references.append(torch.optim.Adam(own, lr=of_run(lr, run)))
    steps = [0, 0, 0]
    for k in range(30):
        gradients = [(1 + k % 3) * torch.randn(p.shape, generator=generator) for p in ours]
        for run, (own, reference) in enumerate(zip(theirs, references, strict=True)):
            if not active(k, run):
                continue
            for p, g in zip(own, gradients, strict=True):
                p.grad = g[run].clone()
            if max_norm is not None:
                nn.utils.clip_grad_norm_(own, of_run(max_norm, run))
            if decay:
                share = min(steps[run] / decay, 1)
                reference.param_groups[0]["lr"] = of_run(lr, run) * 0.5 * (1 + math.cos(math.pi * share))
            reference.step()
            steps[run] += 1
        adam.step(gradients, torch.tensor([active(k, run) for run in range(3)]) if masked else None)
    tolerance = rounding if decay else 1e-12  # rates are float32
    for i, p in enumerate(ours):
        for run in range(3):
            torch.testing.assert_close(p[run], theirs[run][i], atol=tolerance, rtol=1e-12)
    assert adam.steps.expand(3).tolist() == steps


@pytest.mark.parametrize("decay", [0, 20])
def test_it_equals_torchs(way, decay, float64):
    """A rate that falls is 0.01 (1 + cos(pi k / 20)) / 2 in step k, counted from 0, and 0 from step 20 on."""
    check(decay=decay)


@pytest.mark.parametrize("decay", [0, 20])
def test_rates_may_differ_between_runs(way, decay, float64):
    check(lr=[0.02, 0.01, 0.001], decay=decay, rounding=1e-7)  # rates that fall are float32


def test_gradients_are_clipped_by_the_norm_of_each_run(way, float64):
    check(max_norm=1.0)
    check(max_norm=[0.1, 5.0, 100.0])


def test_runs_that_are_not_active_stand_still(way, float64):
    """They keep their moments and number of steps too, so that their next step is as if they had waited."""

    def active(k, run):
        return run == 0 or k % (run + 1) == 0

    check(active=active, masked=True)
    check(active=active, masked=True, decay=20, lr=[0.02, 0.01, 0.001], rounding=1e-7)
    check(masked=True)


def test_a_run_that_is_clipped_does_not_touch_its_neighbours():
    w = torch.zeros(2, 3, requires_grad=True)
    adam = Adam([w], lr=0.1, max_norm=1.0)
    adam.step([torch.tensor([[math.nan, 1.0, 1.0], [0.1, 0.1, 0.1]])])
    assert w[0].isnan().all() and torch.allclose(w[1], torch.tensor(-0.1), atol=1e-4)


def test_a_run_whose_state_is_put_back_does_not_touch_its_neighbours():
    """So runs are frozen that have diverged: all of a run's state is put back after each step."""
    ends = []
    for frozen in (False, True):
        generator = torch.Generator().manual_seed(0)
        ours = parameters(generator)
        adam = Adam(ours, lr=0.1, schedule=cosine(40))
        for _ in range(30):
            before = [t.detach()[0].clone() for t in (*ours, *adam.buffers()) if t.dim()]
            adam.step([torch.randn(p.shape, generator=generator) for p in ours])
            if frozen:
                for t, old in zip([t for t in (*ours, *adam.buffers()) if t.dim()], before, strict=True):
                    t.detach()[0] = old
        ends.append([p.detach()[1:].clone() for p in ours])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_rate_falls_along_a_cosine_to_0_and_stays_there():
    adam = Adam([torch.ones(1, 1, requires_grad=True)], lr=3e-4, schedule=cosine(1_000_000))
    for step, rate in ((0, 3e-4), (250_000, 2.5606602e-4), (500_000, 1.5e-4), (1_000_000, 0.0), (2_000_000, 0.0)):
        adam.count.fill_(step)
        assert float(adam.rate()) == pytest.approx(rate, rel=1e-5, abs=1e-12)
    assert Adam([torch.ones(1, 1, requires_grad=True)], lr=3e-4).rate() == 3e-4


@pytest.mark.parametrize("lr", [1.0, PerRun([1.0, 1.0])])
def test_a_schedule_goes_on_beyond_what_float32_can_count(way, lr):
    """From 2^24 on, a number in float32 stays as it is when 1 is added."""
    w = torch.ones(2, 1, requires_grad=True)
    adam = Adam([w], lr=lr, schedule=linear(2, every=2**24 + 2))
    adam.steps.fill_(2**24)
    adam.count.fill_(2**24)
    for rate in (1.0, 1.0, 0.5):
        assert torch.as_tensor(adam.rate()).tolist() == (rate if adam.alike else [rate, rate])
        adam.step([torch.ones(2, 1)])


@pytest.mark.parametrize(("active", "rates"), [(None, 0.75), (torch.tensor([True, False]), [0.75, 1.0])])
def test_the_schedule_of_an_earlier_checkpoint_goes_on(active, rates):
    """Its optimisers have no count, and their steps are in float32."""
    first, second = (Adam([torch.ones(2, 1, requires_grad=True)], lr=1.0, schedule=linear(4)) for _ in range(2))
    first.step([torch.ones(2, 1)], active)
    second.load_state_dict({name: value for name, value in first.state_dict().items() if name != "count"})
    assert second.rate().tolist() == rates


def test_a_rate_that_falls_is_float32_whatever_the_parameters_are(float64):
    """The kernel of CUDA takes no other."""
    adam = Adam([torch.ones(2, 1, requires_grad=True)], lr=1.0, schedule=linear(4))
    assert adam.rate().dtype == torch.float32


def test_gradients_are_those_of_the_runs_alone_and_touch_nothing_else():
    w, other = torch.ones(3, 2, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    loss = ((w * other).sum(1) * torch.tensor([1.0, 10.0, 100.0])).square()
    (gradient,) = Adam([w], lr=0.1).gradients(loss)
    torch.testing.assert_close(gradient, torch.tensor([4.0, 400.0, 40_000.0])[:, None].expand(3, 2))
    assert w.grad is None and other.grad is None


def test_a_loss_that_does_not_depend_on_a_parameter_is_refused():
    w, other, third = (torch.ones(3, size, requires_grad=True) for size in (2, 4, 5))
    told = r"does not depend on 2 of the 3 parameters of this optimiser, the first of them of the shape \(3, 4\)"
    with pytest.raises(ValueError, match=told):
        Adam([w, other, third], lr=0.1).minimise(w.square().sum(1))


@pytest.mark.parametrize("reduced", [lambda x: x.mean(), lambda x: x.mean(0), lambda x: x[:2, 0], lambda x: x])
def test_losses_that_are_not_one_for_each_run_are_refused(reduced):
    w = torch.ones(3, 2, requires_grad=True)
    with pytest.raises(ValueError, match=r"there must be one loss for each of 3 runs, \[3\], got \["):
        Adam([w], lr=0.1).minimise(reduced(w))


@pytest.mark.parametrize("lr", [0.1, PerRun([0.1, 0.2, 0.3])])
@pytest.mark.parametrize("active", [None, torch.tensor([True, False, True])])
def test_a_restored_optimiser_goes_on_exactly(lr, active):
    w, v = torch.ones(3, 1, requires_grad=True), torch.ones(3, 1, requires_grad=True)
    first, second = (Adam([p], lr=lr, schedule=cosine(4)) for p in (w, v))
    first.step([torch.tensor([[1.0], [-2.0], [3.0]])], active)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        v.copy_(w)
    for adam in (first, second):
        adam.step([torch.full((3, 1), 0.5)])
    assert torch.equal(w, v) and second.steps.expand(3)[0] == 2


def network(runs=2):
    net = MLP((runs,), 3, (4,), 1)
    initialise(net, generators(range(runs), "net"))
    return net


@pytest.mark.parametrize("taus", [0.25, [0.25, 0.5]])
def test_a_target_follows_by_polyak_averaging(taus):
    net = network()
    target = Target(net, PerRun(taus) if isinstance(taus, list) else taus)
    before = [p.clone() for p in target.parameters()]
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1.0)
    target.update()
    for old, new in zip(before, target.parameters(), strict=True):
        for run in range(2):
            torch.testing.assert_close(new[run], old[run] + of_run(taus, run))
    assert not any(p.requires_grad for p in target.parameters())


def test_a_target_saves_itself_and_not_the_network_that_it_follows():
    target = Target(network(), 0.5)
    assert all(name.startswith("net.") for name in target.state_dict())
