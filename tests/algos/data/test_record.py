"""The record: sampling, parts of it, and how it is prepared for a method."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from dataset_files import (
    ACT,
    OBS,
    assert_same,
    d4rl_arrays,
    expected,
    hdf5,
    npz,
    ogbench_arrays,
    trajectories,
    transitions,
)

from algos.data import Dataset, load
from algos.data.record import EDGE
from algos.errors import UserError
from envs import Task


def test_gather_gives_each_run_its_own_transitions(data):
    integers = torch.randint(2**63 - 1, (3, 7), generator=torch.Generator().manual_seed(0))
    batch, wanted = data.gather(data.choose(integers)), expected(trajectories(5, 4, 1, 6, 9))
    for r in range(3):
        for b in range(7):
            number = int(integers[r, b]) % 25
            for got, all_of_them in zip(batch, wanted, strict=True):
                np.testing.assert_array_equal(got[r, b], all_of_them[number])
    assert batch.obs.shape == (3, 7, OBS) and batch.reward.shape == (3, 7)


def test_choose_wraps_large_integers_around(data):
    integers = torch.tensor([[0, 24, 25, 2**63 - 1]])
    assert data.choose(integers).tolist() == [[0, 24, 0, (2**63 - 1) % 25]]


def test_the_task_of_an_agent_has_the_datas_sizes_and_acts_within_one(data):
    data.fit_actions(np.full(ACT, -2.0), np.full(ACT, 2.0))
    wanted = Task(data.name, (OBS,), ACT, False, (-1.0, -1.0), (1.0, 1.0), 77)
    assert replace(data, limit=77).task == wanted


# -- arrays of a user's own --------------------------------------------------------------------------------------------


def own_arrays(count=6):
    rng = np.random.default_rng(0)
    obs, next_obs = rng.standard_normal((2, count, 3))
    return {
        "obs": obs, "action": rng.uniform(-1, 1, (count, 2)), "reward": np.arange(count), "next_obs": next_obs,
        "terminated": np.arange(count) % 3 == 2,
    }  # fmt: skip


@pytest.mark.parametrize("kind", [np.asarray, np.ndarray.tolist, torch.from_numpy])
def test_a_dataset_of_arrays_has_their_transitions(kind):
    """They may be numbers of any type, in arrays, lists or tensors."""
    arrays = own_arrays()
    data = Dataset.of(**{name: kind(array) for name, array in arrays.items()}, name="mine")
    assert (len(data), data.obs_size, data.act_size, data.rows.dtype) == (6, 3, 2, torch.float32)
    assert data.task == Task("mine", (3,), 2, False, (-1.0, -1.0), (1.0, 1.0), 0)
    batch = data.gather(torch.tensor([[5, 0, 3], [2, 2, 1]]))
    for name, array in arrays.items():
        np.testing.assert_array_equal(getattr(batch, name), array.astype(np.float32)[[[5, 0, 3], [2, 2, 1]]])


def test_a_dataset_of_arrays_is_a_copy_in_which_no_transition_follows_another():
    arrays = own_arrays()
    data, before = Dataset.of(**arrays), arrays["obs"].copy()
    data.standardise()
    np.testing.assert_array_equal(arrays["obs"], before)
    np.testing.assert_array_equal(data.returns(), arrays["reward"])


def test_a_dataset_of_arrays_has_the_trajectories_that_it_is_told():
    """A termination ends one too, and the last transition of all."""
    arrays = own_arrays(7) | {"terminated": np.arange(7) == 1}
    arrays["next_obs"][[0, 2, 3, 5]] = arrays["obs"][[1, 3, 4, 6]]
    arrays["next_obs"][3] *= 1 + 1e-7  # as float32 has it
    data = Dataset.of(**arrays, last=np.arange(7) == 4)
    assert data.trajectories().tolist() == [[0, 2], [2, 5], [5, 7]] and len(data.rows) == 7 + 3
    batch = data.gather(torch.arange(7)[None])
    for name, array in arrays.items():
        np.testing.assert_allclose(getattr(batch, name)[0], array.astype(np.float32), rtol=1e-6)
    with pytest.raises(ValueError, match="obs 5 is not next_obs 4, though `last` has no end between them"):
        Dataset.of(**arrays, last=np.zeros(7))


def test_a_dataset_of_arrays_follows_torchs_default_precision(float64):
    arrays = own_arrays()
    data = Dataset.of(**arrays)
    np.testing.assert_array_equal(transitions(data)[0], arrays["obs"])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"reward": np.zeros(5)}, r"must have the same length, at least 1, got .*reward \[5\]"),
        ({"next_obs": np.zeros((1, 3))}, r"must have the same length, at least 1, got .*next_obs \[1, 3\]"),
        ({"obs": np.zeros((7, 3))}, r"must have the same length, at least 1, got obs \[7, 3\]"),
        ({"next_obs": np.zeros((6, 4))}, r"obs and next_obs must have the same shape, got .*next_obs \[6, 4\]"),
        ({"next_obs": np.zeros((6, 1))}, r"obs and next_obs must have the same shape, got .*next_obs \[6, 1\]"),
        ({"reward": np.full(6, np.nan)}, "reward has numbers that are not finite"),
        ({"reward": np.full(6, 1e39)}, "reward has numbers that are not finite in float32"),
        ({"terminated": np.full(6, 0.5)}, "terminated must be 0 or 1"),
        ({"action": np.full((6, 2), np.inf)}, "action has numbers that are not finite"),
        ({"action": np.zeros(6)}, r"shapes must be .*\[N, A\].*, got .*action \[6\]"),
        ({"last": np.zeros(5)}, r"must have the same length, at least 1, got .*last \[5\]"),
        ({"last": np.zeros((6, 1))}, r"shapes must be .*, got .*last \[6, 1\]"),
        ({"reward": np.zeros((6, 2))}, r"shapes must be .*, got .*reward \[6, 2\]"),
        ({name: array[:0] for name, array in own_arrays().items()}, "must have the same length, at least 1"),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        Dataset.of(**own_arrays() | changed)


# -- other devices, parts, preparation ---------------------------------------------------------------------------------


def test_data_is_not_copied_to_the_device_where_it_is(data):
    moved = data.to(torch.device("cpu"))
    assert moved.rows.data_ptr() == data.rows.data_ptr()


def test_data_follows_torchs_default_precision(data, float64):
    data.standardise()
    moved = data.to(torch.device("cpu"))
    assert moved.rows.dtype == moved.obs_scaling[0].dtype == torch.float64


def test_part_and_best(data):
    returns = np.array([t.reward.astype(float).sum() for t in trajectories(5, 4, 1, 6, 9)])
    order = np.argsort(-returns)
    lengths, starts = np.array([5, 4, 1, 6, 9]), np.array([0, 5, 9, 10, 16])
    for fraction in (0.04, 0.3, 0.5, 1.0):
        share, chosen = 0, []
        for i in order:
            chosen.append(i)
            share += lengths[i]
            if share >= fraction * 25:
                break
        rows = np.concatenate([np.arange(starts[i], starts[i] + lengths[i]) for i in sorted(chosen)])
        best = data.best(fraction)
        assert_same(transitions(best), [x[rows] for x in transitions(data)])
        np.testing.assert_allclose(best.returns(), returns[sorted(chosen)], rtol=1e-6)
        assert best.digest != data.digest and best.rows is data.rows
    assert data.best(0.3).digest != data.best(1.0).digest


def test_joined(data, tmp_path):
    arrays = ogbench_arrays(trajectories(3, 4, seed=1))
    other = load(npz(tmp_path / "other.npz", {k: v for k, v in arrays.items() if k != "rewards"}))
    both = data.joined(other)
    assert_same(transitions(both), [np.concatenate(x) for x in zip(transitions(data), transitions(other), strict=True)])
    assert len(both.trajectories()) == 7 and not both.rewarded and data.rewarded
    assert both.digest not in (data.digest, other.digest, other.joined(data).digest)


def test_standardise(data):
    obs, _, _, next_obs, _ = transitions(data)
    mean, scale = obs.astype(float).mean(0), obs.astype(float).std(0) + 1e-3
    data.standardise()
    np.testing.assert_allclose(transitions(data)[0], (obs - mean) / scale, atol=1e-6)
    np.testing.assert_allclose(transitions(data)[3], (next_obs - mean) / scale, atol=1e-6)
    seen = []
    act = data.adapt(lambda o: seen.append(o) or torch.zeros(*o.shape[:-1], ACT))
    act(torch.from_numpy(obs))
    np.testing.assert_allclose(seen[0], (obs - mean) / scale, atol=1e-6)
    with pytest.raises(ValueError, match="are standardised already"):
        data.standardise()


def test_scale_rewards(data, tmp_path):
    before = transitions(data)[2]
    returns = np.array([t.reward.astype(float).sum() for t in trajectories(5, 4, 1, 6, 9)])
    factor = 1000 / (returns.max() - returns.min())
    assert f"{factor:.4g}" in data.scale_rewards("range")
    np.testing.assert_allclose(transitions(data)[2], before * factor, rtol=1e-5)
    assert np.ptp(data.returns()) == pytest.approx(1000, rel=1e-5)
    data.scale_rewards("minus_one")
    np.testing.assert_allclose(transitions(data)[2], before * factor - 1, rtol=1e-5)
    data.scale_rewards("none")
    np.testing.assert_allclose(transitions(data)[2], before * factor - 1, rtol=1e-5)
    same = load(hdf5(tmp_path / "same.hdf5", d4rl_arrays(trajectories(5, 5)) | {"rewards": np.ones(10, np.float32)}))
    with pytest.raises(UserError, match="same return"):
        same.scale_rewards("range")


def test_a_part_is_told_by_a_mask_or_by_numbers(data, monkeypatch):
    monkeypatch.setattr("algos.data.record.CHUNK", 7)
    mask = np.arange(len(data)) % 3 > 0
    data.states = np.arange(len(data) * 2.0).reshape(-1, 2)
    by_mask, by_numbers = data.where(mask), data.part(np.flatnonzero(mask))
    assert by_mask.digest == by_numbers.digest != data.digest and by_mask.rows is data.rows
    assert torch.equal(by_mask.index, by_numbers.index) and np.array_equal(by_mask.states, by_numbers.states)


def test_actions_outside_of_the_policies_range_are_refused(data):
    data.action.mul_(2)
    with pytest.raises(ValueError, match=r"and policies act in \[-1, 1\]: call fit_actions\(low, high\) first$"):
        _ = data.task
    data.fit_actions(-2.0, 2.0)
    assert data.task.low == (-1.0,) * ACT


def test_one_bound_may_serve_all_actions(data):
    other = copy.deepcopy(data)
    data.fit_actions(-2, 3.0)
    other.fit_actions(np.full(ACT, -2.0), np.full(ACT, 3.0))
    assert torch.equal(data.action, other.action) and torch.equal(
        data.raw_action(data.action), other.raw_action(other.action)
    )
    with pytest.raises(ValueError, match=f"actions have {ACT} numbers, got {ACT + 1} and {ACT + 1} bounds"):
        data.fit_actions(np.zeros(ACT + 1), np.ones(ACT + 1))


def test_fit_actions(data):
    before = transitions(data)[1]
    low, high = np.array([-2, -0.5], np.float32), np.array([1, 0.5], np.float32)
    data.fit_actions(low, high)
    wanted = np.clip((before - (low + high) / 2) / ((high - low) / 2), EDGE - 1, 1 - EDGE)
    np.testing.assert_allclose(transitions(data)[1], wanted, atol=1e-6)
    act = data.adapt(lambda obs: torch.tensor([[0.5, -7.0]]))
    np.testing.assert_allclose(act(torch.zeros(1, OBS)), [[0.25, -0.5]], atol=1e-6)
    data.fit_actions(-1, 1)  # where they are
    with pytest.raises(ValueError, match=r"were mapped to \[-1, 1\] already"):
        data.fit_actions(low, high)


def test_actions_go_back_to_their_bounds_and_not_beyond(data):
    rng = np.random.default_rng(0)
    for _ in range(50):
        low = (rng.choice([1, 1_000]) * rng.normal(size=ACT)).astype(np.float32)
        high = low + rng.exponential(size=ACT).astype(np.float32)
        data.action_scaling = None
        data.fit_actions(low, high)
        ends = [data.raw_action(torch.full((ACT,), end)).numpy() for end in (-1.0, 1.0)]
        assert (ends[0] >= low).all() and (ends[1] <= high).all()
        np.testing.assert_allclose(ends, [low, high], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("low", "high"), [([-1, 0.5], [1, 0.5]), ([1, 1], [-1, -1]), (1 + 1e-9, 1 + 2e-9)])
def test_bounds_that_leave_nothing_between_them_are_refused(low, high, data):
    before = transitions(data)[1]
    with pytest.raises(UserError, match="a lower bound is not below the upper one"):
        data.fit_actions(low, high)
    assert_same([transitions(data)[1]], [before])


def test_actions_within_one_are_only_clipped(data):
    before = transitions(data)[1]
    data.fit_actions(-np.ones(ACT), np.ones(ACT))
    assert_same([transitions(data)[1]], [before.clip(-1 + EDGE, 1 - EDGE)])
    assert data.action_scaling is None
    with pytest.raises(UserError, match="without bounds"):
        data.fit_actions(-np.ones(ACT), np.full(ACT, np.inf))
