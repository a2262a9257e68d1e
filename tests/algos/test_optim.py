"""Adam against torch's."""

import math

import pytest
import torch

from algos.optim import Adam


@pytest.mark.parametrize("decay_steps", [0, 20])
@pytest.mark.parametrize("way", ["step", "_formula"])
def test_adam_equals_torchs(way, decay_steps, float64):
    """With a rate that falls, the k-th of 30 steps, counted from 0, has 0.01 (1 + cos(pi k / 20)) / 2, then 0."""
    generator = torch.Generator().manual_seed(0)
    ours = [
        torch.randn(3, 4, generator=generator, requires_grad=True),
        torch.randn(5, generator=generator, requires_grad=True),
    ]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    adam, reference = Adam(ours, lr=0.01, decay_steps=decay_steps), torch.optim.Adam(theirs, lr=0.01)
    for k in range(30):
        if decay_steps:
            reference.param_groups[0]["lr"] = 0.005 * (1 + math.cos(math.pi * min(k / decay_steps, 1)))
        gradients = [torch.randn(p.shape, generator=generator) for p in ours]
        for p, g in zip(theirs, gradients, strict=True):
            p.grad = g.clone()
        reference.step()
        rate = adam.rate()
        if way == "step":
            adam.step(gradients)
        else:
            torch._foreach_add_(adam.steps, 1)
            with torch.no_grad():
                adam._formula(gradients, rate)
    for a, b in zip(ours, theirs, strict=True):
        tolerance = 1e-8 if decay_steps else 1e-12  # rates are float32
        torch.testing.assert_close(a, b, atol=tolerance, rtol=1e-12)


def test_a_rate_falls_along_a_cosine_to_0_and_stays_there():
    adam = Adam([torch.ones(1, requires_grad=True)], lr=3e-4, decay_steps=1_000_000)
    for step, rate in ((0, 3e-4), (250_000, 2.5606602e-4), (500_000, 1.5e-4), (1_000_000, 0.0), (2_000_000, 0.0)):
        adam.steps[0].fill_(step)
        assert float(adam.rate()) == pytest.approx(rate, rel=1e-5, abs=1e-12)
    assert Adam([torch.ones(1, requires_grad=True)], lr=3e-4).rate() == 3e-4


def test_gradients_are_those_of_the_runs_alone_and_touch_nothing_else():
    w, other = torch.ones(3, 2, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    loss = ((w * other).sum(1) * torch.tensor([1.0, 10.0, 100.0])).square()
    (gradient,) = Adam([w], lr=0.1).gradients(loss)
    torch.testing.assert_close(gradient, torch.tensor([4.0, 400.0, 40_000.0])[:, None].expand(3, 2))
    assert w.grad is None and other.grad is None


def test_a_restored_optimiser_goes_on_exactly():
    w, v = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    first, second = (Adam([p], lr=0.1, decay_steps=4) for p in (w, v))
    first.step([torch.tensor([1.0, -2.0, 3.0])])
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        v.copy_(w)
    for adam in (first, second):
        adam.step([torch.tensor([0.5, 0.5, 0.5])])
    assert torch.equal(w, v) and second.steps[0] == 2
