"""Random numbers per run."""

import pytest
import torch

from algos.random import Stream

KINDS = ["normal", "uniform", "integer"]


@pytest.mark.parametrize("shape", [(5, 2), (1000,)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_draws_the_same_whoever_its_neighbours_are(kind, shape):
    together, alone = Stream([3, 7], "x", shape, kind), Stream([7], "x", shape, kind)
    for _ in range(2 * together.block.shape[1] + 1):  # beyond one block
        a, b = together(), alone()
        assert torch.equal(a[1], b[0]) and not torch.equal(a[0], a[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drawn", [0, 3, 1_024, 1_030])
def test_a_restored_stream_goes_on_exactly(kind, drawn):
    stream = Stream([3, 7], "x", (6,), kind)
    for _ in range(drawn):
        stream()
    state = {name: t.clone() for name, t in stream.state_dict().items()}
    expected = [stream().clone() for _ in range(1_100)]
    other = Stream([3, 7], "x", (6,), kind)
    other.load_state_dict(state)
    assert all(torch.equal(other(), e) for e in expected)


def test_purposes_differ():
    assert not torch.equal(Stream([3], "x", (6,), "normal")(), Stream([3], "y", (6,), "normal")())


def test_draws_have_their_distribution():
    normal = torch.stack([Stream([0], "n", (100_000,), "normal")() for _ in range(1)])
    uniform = Stream([0], "u", (100_000,), "uniform")()
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.01
    assert Stream([0], "i", (1000,), "integer")().min() >= 0
