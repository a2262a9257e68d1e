"""GORP: scores by hand, steps, runs of different lengths, and what it learns."""

import gorp
import numpy as np
import pandas as pd
import pytest
import torch
from gorp import GORP, Args, Draws, main
from scripts import differing

from algos.episodes import Episodes, collect
from algos.errors import UserError
from algos.random import Random
from algos.run import Run
from envs import SeededEnvs, Task

TASK = Task("Made-v0", (1,), 2, True, (), (), 6)
QUICK = {"eval_every": 10**9, "threads": 1}


def made(rewards, lengths=None) -> Episodes:
    """Episodes with these rewards [R, E, T], which last as long as their rewards, or as these lengths [R, E] say."""
    rewards = torch.tensor(rewards)
    running = torch.ones(rewards.shape, dtype=torch.bool)
    if lengths is not None:
        running = torch.arange(rewards.shape[-1]) < torch.tensor(lengths)[..., None]
    return Episodes(torch.zeros(*rewards.shape, 1), torch.zeros(rewards.shape), rewards * running, running)


# -- one iteration -----------------------------------------------------------------------------------------------------


def test_sequences_are_the_digits_of_their_numbers():
    """Three actions and sequences of two of them: each is tried by m = 2 episodes, one after the other."""
    task = Task("Made-v0", (1,), 3, True, (), (), 6)
    agent = GORP(Args(k=2, m=2), task, [3, 7])
    agent.iteration += 1
    agent.actions[:, 0] = torch.tensor([2, 1])
    draws = Draws(torch.rand(2, 6, 5))
    for first in (0, 5, 10, 15):
        obs, numbers = torch.zeros(2, 5, 1), torch.arange(first, first + 5) // 2
        assert torch.equal(agent.act(obs, 0, first, draws), torch.tensor([[2] * 5, [1] * 5]))
        assert agent.act(obs, 1, first, draws).tolist() == [(numbers // 3 % 3).tolist()] * 2
        assert agent.act(obs, 2, first, draws).tolist() == [(numbers % 3).tolist()] * 2
        for t in (3, 5):
            assert torch.equal(agent.act(obs, t, first, draws), (3 * draws.action[:, t]).long())


@pytest.mark.parametrize(("score", "expected"), [("mean", [0, 1]), ("max", [1, 1])])
def test_the_first_action_of_the_best_sequence_is_fixed(score, expected):
    """Two episodes for each of 00, 01, 10 and 11, at time 1: what was paid at time 0 counts for nothing.

    The means of run 0 are 1, 2.5, 2, 2.5 and its greatest returns 2, 3, 4, 3. Those of run 1 are 0, 0, 1, 1 and 0, 0,
    1, 1.
    """
    rewards = [
        [[9.0, 0, 0], [9, 2, 0], [0, 2, 0], [0, 1, 2], [0, 4, 0], [0, 0, 0], [0, 2, 0], [0, 3, 0]],
        [[5.0, 0, 0], [5, 0, 0], [9, 0, 0], [9, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]],
    ]
    agent = GORP(Args(k=2, m=2, score=score), TASK, [3, 7])
    agent.iteration += 1
    assert not agent.learn(made(rewards)).any()
    assert agent.actions[:, 1].tolist() == expected and agent.iteration == 2
    assert not agent.actions[:, [0, 2, 3, 4, 5]].any()


def test_equal_sequences_go_to_the_first_and_later_rewards_are_discounted():
    rewards = [[[0.0, 1.0], [1, 0]], [[1.0, 0.0], [0, 1]], [[0.0, 2.1], [1, 0]]]
    for discount, expected in ((1.0, [0, 0, 0]), (0.5, [1, 0, 0]), (0.4, [1, 0, 1])):
        agent = GORP(Args(discount=discount), TASK, [0, 1, 2])
        agent.learn(made(rewards))
        assert agent.actions[:, 0].tolist() == expected


def test_fixed_actions_are_played_whatever_is_observed():
    agent = GORP(Args(), TASK, [0, 1])
    agent.actions[:] = torch.tensor([[1, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1]])
    agent.iteration += 3
    for t, expected in ((0, [1, 0]), (1, [0, 1]), (2, [1, 1]), (3, [0, 0]), (99, [0, 0])):
        assert torch.equal(
            agent.policy(torch.rand(2, 4, 1), torch.tensor(t)), torch.tensor(expected)[:, None].repeat(1, 4)
        )


def test_runs_stop_after_more_than_ten_iterations_before_which_all_episodes_ended_and_at_the_time_limit():
    task = Task("Made-v0", (1,), 2, True, (), (), 40)
    agent, zeros = GORP(Args(), task, [0, 1]), [[[0.0] * 40] * 2] * 2
    for i in range(40):
        stopped = agent.learn(made(zeros, [[3, 3], [40 if i % 9 == 8 else 2, 2]]))
        assert stopped.tolist() == [i >= 13 or i == 39, i == 39], i


# -- whole runs --------------------------------------------------------------------------------------------------------


def test_steps_of_all_sequences_are_counted(train, bare_runs):
    flags = {"env_id": "tabular/frozen-lake-4x4", "k": 2, "m": 3, "seeds": ("0", "1"), "log_every": 1}
    result = train("gorp", total_steps=1_500, **QUICK, **flags)
    steps = result.log[result.log["metric"] == "env_steps"].groupby("seed")["value"]
    assert result.config["taken"] != [1_500] * 2
    assert all(16 * 3 <= value <= 16 * 3 * 20 for value in steps.first())
    envs = SeededEnvs("tabular/frozen-lake-4x4", [0, 1], 3, actions="discrete")
    agent = GORP(Args(k=2, m=3), envs.task, [0, 1])
    draws, taken, done = agent.draws(Random([0, 1]), 3), torch.zeros(2), torch.zeros(2)
    while (done < 1_500).any():

        def begin(first):
            numbers = draws()
            return lambda obs, t: agent.act(obs, t, first, numbers)

        episodes = collect(envs, 48, begin)
        assert episodes.lengths.shape == (2, 48)
        steps = episodes.lengths.sum(1)
        taken += torch.where(done < 1_500, steps, 0)
        stopped = agent.learn(episodes)
        done += steps
        done[stopped] = 1_500
    assert result.config["taken"] == taken.tolist()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"m": 3}, (4, 3)),
        ({"m": 3, "num_envs": 2}, (4, 2)),
        ({"env_id": "Reacher-v5", "levels": (-1.0, 0.0, 1.0), "num_envs": 4}, (9, 4)),
    ],
)
def test_a_run_has_the_environments_and_the_actions_that_it_is_told(flags, expected, train, bare_runs, monkeypatch):
    seen, draws, play = set(), GORP.draws, gorp.collect

    def noted(agent, random, envs):
        seen.add((agent.sequences, envs))
        return draws(agent, random, envs)

    def played(envs, *given, **flags):
        seen.add(envs.obs.shape[1])
        return play(envs, *given, **flags)

    monkeypatch.setattr(GORP, "draws", noted)
    monkeypatch.setattr(gorp, "collect", played)
    result = train("gorp", total_steps=100, seeds=("0", "1"), **QUICK, **flags)
    assert result.code == 0 and seen == {expected, expected[1]}


def test_too_many_sequences_and_bad_input_are_refused_in_one_sentence(tmp_path):
    for overrides, message in (
        ({"k": 10, "m": 1}, r"--k 10 --m 1 takes 4\^10 x 1 episodes an iteration, and the most are 1,000,000"),
        ({"k": 5, "m": 1_000}, r"--k 5 --m 1000 takes 4\^5 x 1,000 episodes"),
        ({"k": 21}, "--k 21 is more than the 20 steps of an episode"),
        ({"env_id": "Pendulum-v1"}, "Pendulum-v1 has Box actions"),
        ({"vary": ("k=1,2",)}, "--vary: k cannot differ between runs"),
    ):
        with pytest.raises(UserError, match=message) as error:
            main(Args(**{"out": tmp_path / "out", "quiet": True, **overrides}))
        assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("env_id", ["tabular/chain", "tabular/gate-0.1875-sticky", "CartPole-v1"])
def test_a_seed_is_the_same_experiment_among_others_that_end_earlier_or_later(env_id, train, bare_runs):
    flags = {"env_id": env_id, "m": 2, "total_steps": 120, "eval_every": 10, "eval_episodes": 1, "threads": 1}
    together = train("gorp", out="together", seeds=("0:12",), **flags)
    alone = train("gorp", out="alone", seeds=("3",), **flags)
    taken = together.config["taken"]
    assert taken[3:4] == alone.config["taken"] and len(set(taken)) > 2
    pd.testing.assert_frame_equal(together.eval.query("seed == 3").reset_index(drop=True), alone.eval)
    assert torch.equal(together.agent["actions"][3], alone.agent["actions"][0])


def test_runs_that_have_done_different_numbers_of_steps_resume_to_the_bitwise_same_end(train, bare_runs, monkeypatch):
    flags = {"env_id": "tabular/chain-sticky", "m": 2, "total_steps": 120, "seeds": ("0:6",), "threads": 1}
    flags |= {"eval_every": 10, "log_every": 5, "checkpoint_every": 2}
    whole, report = train("gorp", out="whole", **flags), Run._report_progress
    for last in (2, 3):
        iterations = []

        def broken(run, last=last, iterations=iterations):
            report(run)
            iterations.append(run.step)
            if len(iterations) == last:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Run, "_report_progress", broken)
            with pytest.raises(KeyboardInterrupt):
                train("gorp", out="broken", resume=True, **flags)
    result = train("gorp", out="broken", resume=True, **flags)
    assert not differing(whole.parameters, result.parameters)
    assert result.config["taken"] == whole.config["taken"] and len(set(whole.config["taken"])) > 2
    for table in ("eval", "log"):
        ours, theirs = getattr(whole, table), getattr(result, table)
        order = [name for name in ours.columns if name not in ("value", "return", "length")]
        ours, theirs = (frame.sort_values(order, ignore_index=True) for frame in (ours, theirs))
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)


def test_a_diverged_run_leaves_its_neighbours_bitwise_as_they_are(train, bare_runs, monkeypatch, capsys):
    receive = SeededEnvs.receive
    flags = {"env_id": "tabular/chain", "m": 2, "total_steps": 120, "seeds": ("4:7",), "log_every": 5, "threads": 1}
    whole = train("gorp", out="whole", **flags)

    broken = [0]

    def poisoned(envs, *counted):
        step = receive(envs, *counted)
        step.reward[broken] = float("nan")
        return step

    monkeypatch.setattr(SeededEnvs, "receive", poisoned)
    result = train("gorp", **flags)
    assert [row["seed"] for row in result.config["diverged"]] == [4] and result.code == 0
    assert "seed 4 diverged" in capsys.readouterr().err
    assert torch.equal(whole.agent["actions"][1:], result.agent["actions"][1:])
    assert result.config["taken"][1:] == whole.config["taken"][1:]
    broken += [1, 2]
    none = train("gorp", out="none", **flags)
    assert none.code == 3 and [row["seed"] for row in none.config["diverged"]] == [4, 5, 6]


def test_a_grid_is_its_settings_alone(train, bare_runs):
    flags = {"env_id": "tabular/lure-0.1", "m": 3, "total_steps": 300, "seeds": ("0:4",), **QUICK}
    grid = train("gorp", out="grid", vary=("discount=0.2,1",), **flags).agent["actions"]
    alone = [train("gorp", out=str(d), discount=d, **flags).agent["actions"] for d in (0.2, 1.0)]
    assert torch.equal(grid, torch.cat(alone)) and not torch.equal(*alone)


# -- learning ----------------------------------------------------------------------------------------------------------


def test_it_crosses_the_frozen_lake(train, bare_runs):
    result = train("gorp", env_id="tabular/frozen-lake-4x4", m=100, seeds=("0:10",), **QUICK)
    last = result.eval.query("step > 0")["return"]
    assert len(last) == 10 and (last == 1).sum() >= 9 and (result.eval.query("step == 0")["return"] == 0).all()


@pytest.mark.parametrize(("k", "expected"), [(1, 0.375), (2, 0.375), (3, 1.0), (4, 1.0)])
def test_it_passes_the_gate_with_sequences_that_are_long_enough(k, expected, train, bare_runs):
    """After k steps to the right, random actions come to the end with probability 2^(k - 4)."""
    result = train("gorp", env_id="tabular/gate-0.375", k=k, m=200, seeds=("0:10",), **QUICK)
    assert np.all(result.eval.query("step > 0")["return"] == expected)
