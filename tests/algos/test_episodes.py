"""Whole episodes: how they are collected, their returns, and the buffer of their steps."""

from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from algos.checkpoint import restore
from algos.episodes import EpisodeBuffer, Episodes, collect, padded
from algos.errors import UserError
from algos.per_run import PerRun
from algos.random import Random
from envs import SeededEnvs, Task

TASK = Task("Made-v0", (3,), 2, True, (), (), 6)
GATE = "tabular/gate-0.375"  # five states in a row, seen one-hot: action 1 goes right, and action 0 ends the episode


def leaving(lengths: torch.Tensor, first: int):
    """Acts so that episode e of a run ends with its step number `lengths` [R, E]."""

    def act(obs, t):
        wanted = lengths[:, first : first + obs.shape[1]]
        wanted = torch.nn.functional.pad(wanted, (0, obs.shape[1] - wanted.shape[1]), value=1)
        return (wanted > t + 1).long()

    return act


def made(lengths, longest: int | None = None) -> Episodes:
    """Episodes of these lengths [R, E], whose every number says where it comes from."""
    lengths = torch.as_tensor(lengths)
    runs, count = lengths.shape
    steps = torch.arange(longest or int(lengths.max()))
    running = steps < lengths[..., None]
    number = 100.0 * torch.arange(runs)[:, None, None] + 10.0 * torch.arange(count)[:, None] + steps + 1
    number = number * running
    return Episodes(number[..., None].expand(-1, -1, -1, 3), number.long() % 2, number + 0.5 * running, running)


# -- collection --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
def test_episodes_are_those_of_the_actions_whatever_the_number_of_environments(width):
    """A number of episodes that is no multiple of the number of environments, and other lengths in each run."""
    lengths = torch.tensor([[1, 4, 2, 3, 1], [3, 1, 1, 2, 2]])
    envs = SeededEnvs(GATE, [3, 7], width, actions="discrete")
    for _ in range(2):
        found = collect(envs, 5, lambda first: leaving(lengths, first))
        assert torch.equal(found.lengths, lengths)
        assert found.reward.shape == (2, 5, 4)
        states = torch.where(found.running, found.obs.argmax(-1), -1)
        assert torch.equal(states, torch.where(found.running, torch.arange(4), -1))
        assert torch.equal(found.action, (torch.arange(4) + 1 < lengths[..., None]).long())
        rewards = torch.zeros(2, 5, 4)  # an episode that ends in state 0 pays
        rewards[..., 0] = 0.375 * (lengths == 1)
        assert torch.equal(found.reward, rewards) and not found.obs[~found.running].any()
        assert torch.equal(found.done, torch.nn.functional.one_hot(lengths - 1, 4).float())


def test_observations_need_not_be_kept():
    lengths = torch.tensor([[1, 4, 2], [3, 1, 1]])
    whole, bare = (
        collect(SeededEnvs(GATE, [3, 7], 2, actions="discrete"), 3, lambda first: leaving(lengths, first), kept)
        for kept in (True, False)
    )
    assert bare.obs.shape == (2, 3, 4, 0) and whole.obs.shape == (2, 3, 4, 4)
    assert all(map(torch.equal, whole[1:], bare[1:]))


def test_only_episodes_that_were_asked_for_are_told():
    """Environments that wait go on underneath, and so do those that are left over in the last round."""
    lengths = torch.tensor([[4, 1, 1, 2, 1], [1, 1, 1, 1, 3]])
    envs = SeededEnvs(GATE, [3, 7], 2, actions="discrete")
    collect(envs, 5, lambda first: leaving(lengths, first))
    ended = envs.take_ended()
    for run in range(2):
        own = [episode for episode in ended if episode.run == run]
        assert sorted(episode.length for episode in own) == sorted(lengths[run].tolist())
        assert all(episode.total == 0.375 * (episode.length == 1) for episode in own)


def test_every_round_begins_everywhere_at_once():
    envs, calls = SeededEnvs(GATE, [3, 7], 2, actions="discrete"), []

    def begin(first):
        act = leaving(torch.tensor([[4, 1, 1, 2, 1]] * 2), first)

        def noted(obs, t):
            calls.append((first, t, obs.clone()))
            return act(obs, t)

        return noted

    collect(envs, 5, begin)
    assert [call[:2] for call in calls] == [(0, 0), (0, 1), (0, 2), (0, 3), (2, 0), (2, 1), (4, 0)]
    assert all((obs.argmax(-1) == 0).all() for _, t, obs in calls if t == 0)


def random_episodes(env_id: str, seeds: list[int], rounds: int = 6) -> tuple[list[Episodes], SeededEnvs]:
    envs = SeededEnvs(env_id, seeds, 2, actions="discrete")
    uniform = Random(seeds).uniform("action", envs.task.limit, 2)
    found = []
    for _ in range(rounds):

        def begin(_):
            noise = uniform()
            return lambda obs, t: (noise[:, t] * envs.act_size).long()

        found.append(collect(envs, 3, begin))
    return found, envs


@pytest.mark.parametrize("env_id", ["tabular/gate-0.375-sticky", "tabular/frozen-lake-4x4-slippery", "CartPole-v1"])
def test_the_episodes_of_a_run_do_not_depend_on_how_long_those_of_others_are(env_id):
    together, _ = random_episodes(env_id, [3, 7, 11, 12])
    alone, _ = random_episodes(env_id, [7])
    longer = 0
    for ours, own in zip(together, alone, strict=True):
        longest = own.reward.shape[2]
        longer += ours.reward.shape[2] > longest
        for x, y in zip(ours, own, strict=True):
            assert torch.equal(x[1:2, :, :longest], y) and not x[1, :, longest:].any()
    assert longer  # or nothing was tested
    assert not torch.equal(together[0].lengths, together[1].lengths)  # each round is another one


def test_collecting_goes_on_from_a_saved_state_as_if_nothing_had_been():
    def noise(step):
        return torch.rand(1, 6, 2, generator=torch.Generator().manual_seed(step))

    def play(envs, step):
        return collect(envs, 2, lambda _: lambda obs, t: (noise(step)[:, t] * 2).long())

    envs, other = (SeededEnvs("tabular/gate-0.375-sticky", [3], 2, actions="discrete") for _ in range(2))
    for step in range(4):
        play(envs, step)
    other.load_state_dict(envs.state_dict())
    for step in range(4, 9):
        assert all(map(torch.equal, play(envs, step), play(other, step)))


def test_padding_is_zeros():
    x = torch.ones(2, 3, 4, 5)
    assert padded(x, 6).shape == (2, 3, 6, 5) and padded(x, 6).sum() == x.sum() and not padded(x, 6)[:, :, 4:].any()


# -- returns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discount", [1.0, 0.9, PerRun([0.5, 0.9])])
def test_returns_are_those_of_a_plain_loop(discount):
    found = made([[3, 1, 5], [2, 5, 4]])
    returns = found.returns(discount)
    for run in range(2):
        gamma = discount.tolist()[run] if isinstance(discount, PerRun) else discount
        for e in range(3):
            rewards = found.reward[run, e].tolist()
            for t in range(5):
                expected = sum(gamma ** (u - t) * rewards[u] for u in range(t, 5))
                assert returns[run, e, t].item() == pytest.approx(expected, rel=1e-6)


# -- the buffer --------------------------------------------------------------------------------------------------------


def stored(buffer: EpisodeBuffer, run: int) -> list[float]:
    """The numbers of the steps of a run, the oldest first."""
    added = int(buffer.added[run])
    places = [place % buffer.capacity for place in range(max(added - buffer.capacity, 0), added)]
    return buffer.rows[run, places, 0].tolist()


@pytest.mark.parametrize("capacity", [4, 7, 9, 50])
def test_the_buffer_keeps_the_last_steps_of_each_run_in_order(capacity):
    """Runs add different numbers of steps, the last ones go around, and once more come than there is room."""
    buffer, expected = EpisodeBuffer(2, capacity, TASK), [[], []]
    for lengths, first in (([[1, 2], [3, 1]], 0), ([[3, 4], [1, 4]], 2), ([[6, 6], [6, 1]], 0), ([[1, 1], [2, 1]], 1)):
        found = made(lengths)
        buffer.add(found, found.returns(0.9), first)
        for run in range(2):
            expected[run] += found.obs[run, :, first:, 0][found.running[run, :, first:]].tolist()
            assert stored(buffer, run) == expected[run][-capacity:]
    assert buffer.added.tolist() == [3 + 3 + 12 + 0, 4 + 2 + 7 + 1]


def test_steps_come_back_with_what_followed():
    buffer, found = EpisodeBuffer(2, 11, TASK), made([[4, 3], [1, 5]])
    returns = found.returns(0.9)
    for _ in range(3):  # the third time goes around the end in both runs
        buffer.add(found, returns)
    for run in range(2):
        samples = buffer.gather(torch.arange(11).expand(2, -1))
        for place in range(11):
            number = int(samples.obs[run, place, 0]) - 1 - 100 * run
            e, t = divmod(number, 10)
            assert samples.obs[run, place].tolist() == found.obs[run, e, t].tolist()
            assert samples.action[run, place] == found.action[run, e, t] and samples.action.dtype == torch.int64
            assert samples.reward[run, place] == found.reward[run, e, t]
            assert samples.returns[run, place] == returns[run, e, t]
            assert samples.done[run, place] == float(t + 1 == found.lengths[run, e])
            if not samples.done[run, place]:
                assert samples.next_obs[run, place].tolist() == found.obs[run, e, t + 1].tolist()


def test_chosen_rows_are_uniform_over_the_steps_of_each_run():
    buffer = EpisodeBuffer(3, 6, TASK)
    assert buffer.choose(torch.tensor([[5, 8]] * 3)).tolist() == [[0, 0]] * 3
    found = made([[2, 1], [4, 4], [1, 1]])
    buffer.add(found, found.returns(1.0), 1)  # 1, 6 and no steps
    assert buffer.choose(torch.tensor([[5, 8, 0]] * 3)).tolist() == [[0, 0, 0], [5, 2, 0], [0, 0, 0]]
    integers = Random([0, 1, 2]).integers("minibatch", 6_000)()
    counts = torch.bincount(buffer.choose(integers)[1], minlength=6)
    assert counts.min() > 850 and counts.max() < 1_150  # five standard deviations are 145


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_the_buffer_goes_on_from_a_saved_state(rounds):
    buffer, other = EpisodeBuffer(2, 9, TASK), EpisodeBuffer(2, 9, TASK)
    found = made([[4, 1], [1, 2]])
    for _ in range(rounds):
        buffer.add(found, found.returns(0.9))
    state = buffer.state_dict()
    assert [len(state[f"rows.{run}"]) for run in range(2)] == [min(n * rounds, 9) for n in (5, 3)]
    other.load_state_dict({name: tensor.clone() for name, tensor in state.items()})
    for each in (buffer, other):
        each.add(found, found.returns(0.5))
    assert torch.equal(buffer.rows, other.rows) and np.array_equal(buffer.added, other.added)


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_checkpoint_of_an_earlier_version_has_one_table_for_all_runs(rounds):
    buffer, other = EpisodeBuffer(2, 9, TASK), EpisodeBuffer(2, 9, TASK)
    found = made([[4, 1], [1, 2]])
    for _ in range(rounds):
        buffer.add(found, found.returns(0.9))
    rows = buffer.rows[:, : min(5 * rounds, 9)].clone()
    restore({"buffer": other}, {"buffer/added": torch.tensor(buffer.added), "buffer/rows": rows}, False)
    assert torch.equal(buffer.rows, other.rows) and np.array_equal(buffer.added, other.added)
    assert torch.equal(buffer.sizes, other.sizes)


def test_too_little_memory_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**20))
    EpisodeBuffer(1, 1_000, TASK)
    with pytest.raises(
        UserError, match=r"a buffer of 40,000 steps needs 0\.0 GiB for 3 runs on cpu.*a smaller buffer"
    ) as e:
        EpisodeBuffer(3, 40_000, TASK)
    assert "\n" not in str(e.value)
