"""Adam against torch's."""

import pytest
import torch

from algos.optim import Adam


@pytest.mark.parametrize("way", ["step", "_formula"])
def test_adam_equals_torchs(way, float64):
    generator = torch.Generator().manual_seed(0)
    ours = [
        torch.randn(3, 4, generator=generator, requires_grad=True),
        torch.randn(5, generator=generator, requires_grad=True),
    ]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    adam, reference = Adam(ours, lr=0.01), torch.optim.Adam(theirs, lr=0.01)
    for _ in range(30):
        gradients = [torch.randn(p.shape, generator=generator) for p in ours]
        for p, g in zip(theirs, gradients, strict=True):
            p.grad = g.clone()
        reference.step()
        if way == "_formula":
            torch._foreach_add_(adam.steps, 1)
        with torch.no_grad():
            getattr(adam, way)(gradients)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_gradients_are_those_of_the_runs_alone_and_touch_nothing_else():
    w, other = torch.ones(3, 2, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    loss = ((w * other).sum(1) * torch.tensor([1.0, 10.0, 100.0])).square()
    (gradient,) = Adam([w], lr=0.1).gradients(loss)
    torch.testing.assert_close(gradient, torch.tensor([4.0, 400.0, 40_000.0])[:, None].expand(3, 2))
    assert w.grad is None and other.grad is None


def test_a_restored_optimiser_goes_on_exactly():
    w, v = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    first, second = Adam([w], lr=0.1), Adam([v], lr=0.1)
    first.step([torch.tensor([1.0, -2.0, 3.0])])
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        v.copy_(w)
    for adam in (first, second):
        adam.step([torch.tensor([0.5, 0.5, 0.5])])
    assert torch.equal(w, v) and second.steps[0] == 2
