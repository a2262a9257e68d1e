"""The replay buffer."""

import numpy as np
import pytest
import torch

from algos.errors import UserError
from algos.replay import ReplayBuffer
from envs import Transition


def step(k: int, runs: int = 2, envs: int = 1, valid=None) -> Transition:
    """A transition whose every number says where it comes from."""
    base = torch.arange(runs)[:, None] * 1_000.0 + k * envs + torch.arange(envs)
    flags = torch.zeros(runs, envs)
    return Transition(
        base[..., None].expand(-1, -1, 3), base[..., None].expand(-1, -1, 2) + 0.25, base + 0.5,
        base[..., None].expand(-1, -1, 3) + 0.75, flags + (k % 2), flags + 1, flags + 1, valid,
    )  # fmt: skip


def everything(buffer: ReplayBuffer, filled: int):
    return buffer.gather(torch.arange(filled).expand(buffer.runs, -1))


@pytest.mark.parametrize("envs", [1, 3])
def test_keeps_the_last_transitions_of_each_run(envs):
    buffer = ReplayBuffer(2, 7, 3, 2)
    for k in range(10):
        buffer.add(step(k, envs=envs))
    batch, count = everything(buffer, 7), 10 * envs
    expected = {float(i) for i in range(count - 7, count)}
    assert set(batch.obs[0, :, 0].tolist()) == expected
    assert {x - 1_000 for x in batch.obs[1, :, 0].tolist()} == expected
    torch.testing.assert_close(batch.action[..., 0], batch.obs[..., 0] + 0.25)
    torch.testing.assert_close(batch.reward, batch.obs[..., 0] + 0.5)
    torch.testing.assert_close(batch.next_obs[..., 2], batch.obs[..., 0] + 0.75)


def test_truncation_is_not_termination():
    buffer = ReplayBuffer(2, 4, 3, 2)
    buffer.add(step(0))  # truncated, not terminated
    buffer.add(step(1))  # both
    assert everything(buffer, 2).terminated.tolist() == [[0, 1], [0, 1]]


def test_transitions_that_only_reset_are_left_out():
    buffer = ReplayBuffer(2, 5, 3, 2)
    for k in range(9):
        valid = None if k % 2 else np.array([[True, True], [False, k == 4]])
        buffer.add(step(k, envs=2, valid=valid))
    assert buffer.added.tolist() == [18, 9]
    assert sorted(everything(buffer, 5).obs[0, :, 0].tolist()) == [13, 14, 15, 16, 17]
    assert sorted(x - 1_000 for x in everything(buffer, 5).obs[1, :, 0].tolist()) == [9, 10, 11, 14, 15]


def test_indices_cover_the_filled_part_of_each_run_uniformly():
    buffer = ReplayBuffer(2, 50, 3, 2)
    buffer.added[:] = [10, 200]
    draws = torch.randint(2**62, (2, 40_000), generator=torch.Generator().manual_seed(0))
    indices = buffer.indices(draws)
    for run, size in ((0, 10), (1, 50)):
        counts = torch.bincount(indices[run], minlength=size)
        assert len(counts) == size and (counts - 40_000 / size).abs().max() < 5 * (40_000 / size) ** 0.5


def test_saves_and_restores():
    buffer, other = ReplayBuffer(2, 7, 3, 2), ReplayBuffer(2, 7, 3, 2)
    for k in range(9):
        buffer.add(step(k))
    other.load_state_dict({name: t.clone() for name, t in buffer.state_dict().items()})
    for b in (buffer, other):
        b.add(step(9))
    assert torch.equal(buffer.rows, other.rows) and (buffer.added == other.added).all()


def test_halfcheetah_takes_at_most_180_bytes_a_transition():
    buffer = ReplayBuffer(3, 1_000, 17, 6)
    assert buffer.rows.nbytes / 3_000 <= 180


def test_refuses_what_does_not_fit():
    with pytest.raises(UserError, match=r"--buffer-size 10000000000 needs .* GiB"):
        ReplayBuffer(4, 10_000_000_000, 17, 6)
