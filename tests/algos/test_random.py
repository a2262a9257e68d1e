"""Random numbers per run."""

import pytest
import torch

from algos.random import Random, RandomSequence

KINDS = ["normal", "uniform", "integers"]


@pytest.mark.parametrize("shape", [(5, 2), (1000,)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_draws_the_same_whoever_its_neighbours_are(kind, shape):
    together, alone = RandomSequence([3, 7], "x", shape, kind), RandomSequence([7], "x", shape, kind)
    for _ in range(2 * together.block.shape[1] + 1):  # beyond one block
        a, b = together(), alone()
        assert torch.equal(a[1], b[0]) and not torch.equal(a[0], a[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drawn", [0, 3, 1_024, 1_030])
def test_a_restored_sequence_goes_on_exactly(kind, drawn):
    draws = RandomSequence([3, 7], "x", (6,), kind)
    for _ in range(drawn):
        draws()
    state = {name: t.clone() for name, t in draws.state_dict().items()}
    expected = [draws().clone() for _ in range(1_100)]
    other = RandomSequence([3, 7], "x", (6,), kind)
    other.load_state_dict(state)
    assert all(torch.equal(other(), e) for e in expected)


def test_names_make_other_numbers():
    assert not torch.equal(RandomSequence([3], "x", (6,), "normal")(), RandomSequence([3], "y", (6,), "normal")())


def test_runs_of_one_seed_see_the_same_numbers():
    draws = Random([3, 7, 3]).normal("x", 4)
    for _ in range(1_030):
        x = draws()
        assert torch.equal(x[0], x[2]) and not torch.equal(x[0], x[1])


def test_a_name_is_refused_twice_whatever_the_kind():
    random = Random([0])
    random.normal("noise", 2)
    random.normal("other noise", 2)
    for kind in (random.normal, random.uniform, random.integers):
        with pytest.raises(ValueError, match="named 'noise' already: choose another name"):
            kind("noise", 3)


def test_all_sequences_are_restored_together():
    def made():
        random = Random([3, 7])
        return random, [random.normal("x", 2), random.uniform("y", 3), random.integers("z", 4)]

    random, draws = made()
    for k, draw in enumerate(draws):
        for _ in range(k + 1):
            draw()
    other, again = made()
    other.load_state_dict({name: t.clone() for name, t in random.state_dict().items()})
    assert all(torch.equal(a(), b()) for a, b in zip(draws, again, strict=True))


def test_draws_have_their_distribution():
    normal = Random([0]).normal("n", 100_000)()
    uniform = Random([0]).uniform("u", 100_000)()
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.01
    integers = Random([0]).integers("i", 1000)()
    assert integers.min() >= 0 and integers.max() > 1 << 62


def test_a_state_with_a_sequence_that_is_not_made_yet_is_refused():
    random, early = Random([0]), Random([0])
    random.normal("noise", 2), random.normal("late", 2), early.normal("noise", 2)
    with pytest.raises(ValueError, match="make the sequence of random numbers 'late' before the training begins"):
        early.load_state_dict(random.state_dict())
