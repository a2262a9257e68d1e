"""The replay buffer."""

import numpy as np
import pytest
import torch

from algos.errors import UserError
from algos.replay import Batch, ReplayBuffer
from envs import Task, Transition


def task_of(obs_size: int = 3, act_size: int = 2, discrete: bool = False) -> Task:
    low, high = ((), ()) if discrete else ((-1.0,) * act_size, (1.0,) * act_size)
    return Task("Made-v0", (obs_size,), act_size, discrete, low, high, 0)


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
    buffer = ReplayBuffer(2, 7, task_of())
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
    buffer = ReplayBuffer(2, 4, task_of())
    buffer.add(step(0))  # truncated, not terminated
    buffer.add(step(1))  # both
    assert everything(buffer, 2).terminated.tolist() == [[0, 1], [0, 1]]


def test_transitions_that_only_reset_are_left_out():
    buffer = ReplayBuffer(2, 5, task_of())
    for k in range(9):
        valid = None if k % 2 else np.array([[True, True], [False, k == 4]])
        buffer.add(step(k, envs=2, valid=valid))
    assert buffer.added.tolist() == [18, 9]
    assert sorted(everything(buffer, 5).obs[0, :, 0].tolist()) == [13, 14, 15, 16, 17]
    assert sorted(x - 1_000 for x in everything(buffer, 5).obs[1, :, 0].tolist()) == [9, 10, 11, 14, 15]


def test_indices_cover_the_filled_part_of_each_run_uniformly():
    buffer = ReplayBuffer(2, 50, task_of())
    buffer.added[:] = [10, 200]
    draws = torch.randint(2**62, (2, 40_000), generator=torch.Generator().manual_seed(0))
    indices = buffer.choose(draws)
    for run, size in ((0, 10), (1, 50)):
        counts = torch.bincount(indices[run], minlength=size)
        assert len(counts) == size and (counts - 40_000 / size).abs().max() < 5 * (40_000 / size) ** 0.5


@pytest.mark.parametrize("extra", [0, 1])
def test_discrete_actions_come_back_as_integers(extra):
    """They may be sent as [R, N] or as [R, N, 1]."""
    buffer = ReplayBuffer(2, 5, task_of(act_size=7, discrete=True))
    action = torch.tensor([[6, 0], [3, 5]])
    flat = step(0, envs=2)
    buffer.add(flat._replace(action=action[..., None] if extra else action))
    batch = everything(buffer, 2)
    assert batch.action.dtype == torch.int64 and torch.equal(batch.action, action)
    assert torch.equal(batch.reward, flat.reward) and buffer.rows.shape[-1] == 3 + 1 + 1 + 3 + 1


def test_takes_any_batch_such_as_the_steps_of_a_model():
    """A batch may hold more than one step, and transitions that are not to be kept."""
    buffer = ReplayBuffer(2, 20, task_of())
    made = step(0, envs=6)
    batch = Batch(made.obs, made.action, made.reward, made.next_obs, made.terminated)
    buffer.add(batch)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(everything(buffer, 6), batch, strict=True))
    buffer.add(step(0, envs=6, valid=np.array([[True, False] * 3, [False] * 6])))
    assert buffer.added.tolist() == [9, 6]
    assert torch.equal(buffer.rows[0, 6:9, 0], batch.obs[0, ::2, 0])


def test_from_an_empty_buffer_nothing_is_chosen():
    with pytest.raises(ValueError, match="a run has no transition in the replay buffer yet"):
        ReplayBuffer(2, 10, task_of()).choose(torch.zeros(2, 4, dtype=torch.int64))


def test_a_step_of_more_environments_than_it_holds_is_refused():
    with pytest.raises(UserError, match="of 5 transitions cannot take a step of 6 environments"):
        ReplayBuffer(2, 5, task_of()).add(step(0, envs=6))


def test_a_batch_that_wraps_around_keeps_its_rows_in_order():
    buffer = ReplayBuffer(2, 5, task_of())
    buffer.add(step(0, envs=3))
    buffer.add(step(1, envs=3))  # 3, 4, 5, of which the last takes the place of 0
    assert buffer.rows[0, :, 0].tolist() == [5, 1, 2, 3, 4]


def test_saves_and_restores():
    buffer, other = ReplayBuffer(2, 7, task_of()), ReplayBuffer(2, 7, task_of())
    for k in range(9):
        buffer.add(step(k))
    other.load_state_dict({name: t.clone() for name, t in buffer.state_dict().items()})
    for b in (buffer, other):
        b.add(step(9))
    assert torch.equal(buffer.rows, other.rows) and (buffer.added == other.added).all()


def test_halfcheetah_takes_at_most_180_bytes_a_transition():
    buffer = ReplayBuffer(3, 1_000, task_of(17, 6))
    assert buffer.rows.nbytes / 3_000 <= 180


def test_refuses_what_does_not_fit():
    with pytest.raises(UserError, match=r"of 10,000,000,000 transitions needs .* GiB"):
        ReplayBuffer(4, 10_000_000_000, task_of(17, 6))
