"""Evaluation, with goals, success and several tasks, and values predicted against values observed."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from algos.errors import UserError
from algos.evaluate import Evaluator, maker
from envs import SeededEnvs
from envs.seeding import sub_seed


class Three(gym.Env):
    """Rewards 1, 2, 3, and then the end; the observation is the number of steps done."""

    observation_space = gym.spaces.Box(0, 10, (1,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, terminates: bool = True, longer: bool = False):
        self.terminates, self.longer = terminates, longer

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        self.length = 3 + (seed or 0) % 4 * self.longer
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.step_number += 1
        end = self.step_number == self.length
        obs = np.full(1, self.step_number, np.float32)
        return obs, float(self.step_number), end and self.terminates, end and not self.terminates, {}


gym.register("Three-v0", Three)
gym.register("ThreeCut-v0", Three, kwargs={"terminates": False})
gym.register("ThreeOrMore-v0", Three, kwargs={"longer": True})


def evaluator(env_id, seeds=(0, 1), episodes=2):
    return Evaluator(maker(env_id), seeds, episodes)


def predicting(bonus: float):
    """Predicts the number of steps done so far."""

    def function(obs, noise):
        return noise, obs[..., 0], torch.full(obs.shape[:2], bonus)

    return function


def test_returns_and_lengths_are_of_whole_episodes():
    scores = evaluator("Three-v0")(lambda obs: torch.zeros(2, 2, 1), 0)
    assert scores == [[("", 6.0, 3, None)] * 2] * 2


class Count(gym.Env):
    """One step, whose reward is the action; actions are 5, 6 and 7."""

    observation_space = gym.spaces.Box(0, 10, (1,))
    action_space = gym.spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action), True, False, {}


gym.register("Count-v0", Count)


def test_discrete_actions_of_a_policy_count_from_0_whatever_the_task_calls_them():
    scores = evaluator("Count-v0")(lambda obs: torch.tensor([[0, 1], [2, 2]]), 0)
    assert [[score.total for score in episodes] for episodes in scores] == [[5.0, 6.0], [7.0, 7.0]]


def test_a_run_has_its_own_episodes_whoever_its_neighbours_are():
    together = evaluator("ThreeOrMore-v0", (0, 1, 2, 3), 5)(lambda obs: torch.zeros(4, 5, 1), 7)
    assert len({score.length for scores in together for score in scores}) > 1
    for run, seed in enumerate((0, 1, 2, 3)):
        assert evaluator("ThreeOrMore-v0", (seed,), 5)(lambda obs: torch.zeros(1, 5, 1), 7)[0] == together[run]


def test_evaluations_at_other_steps_have_other_episodes():
    evaluate = evaluator("ThreeOrMore-v0", (0,), 30)
    lengths = [[s.length for s in evaluate(lambda obs: torch.zeros(1, 30, 1), step)[0]] for step in (0, 1000, 0)]
    assert lengths[0] == lengths[2] != lengths[1]


class Reach(gym.Env):
    """The goal is 1 to 3 steps to the right; there the episode ends, with success, or fails after 4 steps."""

    observation_space = gym.spaces.Box(-10, 10, (1,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, goals: bool = True, late: bool = False):
        self.goals, self.late = goals, late

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.count, self.goal = 0.0, 0, 1 + (seed or 0) % 3
        return np.zeros(1, np.float32), {"goal": np.full(2, self.goal, np.float32)} if self.goals else {}

    def step(self, action):
        self.at, self.count = self.at + float(action[0]), self.count + 1
        there = abs(self.at - self.goal) < 0.1
        end = self.count == 4
        return np.full(1, self.at, np.float32), -1.0, there and not self.late, end, {"success": float(there)}


gym.register("Reach-v0", Reach)
gym.register("ReachLate-v0", Reach, kwargs={"late": True})
gym.register("ReachWithoutGoals-v0", Reach, kwargs={"goals": False})


def test_a_policy_takes_the_goal_where_resets_tell_one_and_success_is_that_of_the_last_step():
    seen = []

    def policy(obs, goal):
        seen.append(goal)
        return (goal[..., :1] - obs).clamp(-1, 1)

    scores = Evaluator(maker("Reach-v0"), [0, 1, 2], 4, goals=True)(policy, 0)
    assert seen[0].shape == (3, 4, 2) and {1.0, 2.0, 3.0} == set(seen[0].unique().tolist())
    for run in range(3):
        for episode, score in enumerate(scores[run]):
            assert score == ("", -seen[0][run, episode, 0].item(), int(seen[0][run, episode, 0]), True)


@pytest.mark.parametrize("name", ["success", "is_success"])
def test_success_has_the_name_of_ogbench_or_of_gymnasium_robotics(name, monkeypatch):
    step = Reach.step
    monkeypatch.setattr(
        Reach, "step", lambda self, action: (*(told := step(self, action))[:4], {name: told[4]["success"]})
    )
    scores = Evaluator(maker("Reach-v0"), [0, 1], 4, goals=True)(
        lambda obs, goal: (goal[..., :1] - obs).clamp(-1, 1), 0
    )
    assert {score.success for run in scores for score in run} == {True}


@pytest.mark.parametrize("value", ["maybe", np.array([1.0, 0.0])])
def test_a_success_that_is_neither_true_nor_false_is_refused(value, monkeypatch):
    step = Reach.step
    monkeypatch.setattr(Reach, "step", lambda self, action: (*step(self, action)[:4], {"success": value}))
    with pytest.raises(UserError, match=r"info\['success'\] must be true or false, got "):
        Evaluator(maker("Reach-v0"), [0, 1], 4, goals=True)(lambda obs, goal: obs * 0, 0)


def test_an_episode_without_success_is_told_as_such():
    right = Evaluator(maker("Reach-v0"), [0, 1], 6, goals=True)(lambda obs, goal: torch.full((2, 6, 1), -1.0), 0)
    assert all(score == ("", -4.0, 4, False) for scores in right for score in scores)
    # passes the goal and goes on: it is the last step that counts
    late = Evaluator(maker("ReachLate-v0"), [0, 1], 6, goals=True)(lambda obs, goal: torch.ones(2, 6, 1), 0)
    assert all(score == ("", -4.0, 4, False) for scores in late for score in scores)


def test_the_first_episode_of_each_task_can_be_played_again_from_its_seed_and_actions():
    """Episodes end at different steps, after which there are neither states nor actions."""
    made = {"right": "Reach-v0", "late": "ReachLate-v0"}

    def make(tasks):
        return gym.vector.SyncVectorEnv(
            [lambda task=task: gym.make(made[task]) for task in tasks], autoreset_mode=AutoresetMode.SAME_STEP
        )

    evaluate, lengths = Evaluator(make, [3, 8], 2, tasks=list(made), goals=True), set()
    for step in (0, 70):
        scores = evaluate(lambda obs, goal: (0.75 * (goal[..., :1] - obs)).clamp(-1, 1), step, "trial")
        ways = evaluate.ways
        assert ways.tasks == list(made) and ways.obs.shape[:2] == ways.actions.shape[:2] == (2, 2)
        for run, number in np.ndindex(2, 2):
            env, seed = gym.make(made[ways.tasks[number]]), ways.seeds[run][number]
            obs, info = env.reset(seed=seed)
            assert seed == sub_seed([3, 8][run], f"trial {ways.tasks[number]}", step, 0) % 2**31
            assert ways.goals[run, number].tolist() == info["goal"].tolist()
            length = scores[run][2 * number].length  # of two episodes of each task
            lengths.add(length)
            for t in range(length):
                assert ways.obs[run, number, t] == obs
                obs, *ends, _ = env.step(ways.actions[run, number, t].astype(np.float32))
                assert any(ends[1:]) == (t == length - 1)
            assert np.isnan(ways.obs[run, number, length:]).all() and np.isnan(ways.actions[run, number, length:]).all()
    assert len(lengths) > 1


def test_without_goals_a_policy_takes_observations_only():
    scores = Evaluator(maker("ReachWithoutGoals-v0"), [0], 6)(lambda obs: torch.ones(1, 6, 1), 0)
    assert all(score.success for score in scores[0])


def test_several_tasks_are_evaluated_at_once_each_by_its_name():
    seen = []

    def make(tasks):
        seen.extend(tasks)
        envs = {"right": lambda: gym.make("Reach-v0"), "late": lambda: gym.make("ReachLate-v0")}
        return gym.vector.SyncVectorEnv([envs[task] for task in tasks], autoreset_mode=AutoresetMode.SAME_STEP)

    evaluate = Evaluator(make, [0, 1], 2, tasks=["right", "late"], goals=True)
    scores = evaluate(lambda obs, goal: torch.ones(2, 4, 1), 0)
    assert seen == ["right", "right", "late", "late"] * 2
    for run in range(2):
        assert [score.task for score in scores[run]] == ["right"] * 2 + ["late"] * 2
        assert [score.success for score in scores[run]] == [True, True, False, False]


def test_a_policy_without_numbers_has_no_return():
    def acts(obs):
        action = torch.zeros(*obs.shape[:2], 1)
        action[1] = torch.nan
        return action

    scores = evaluator("Three-v0", (0, 1, 2), 2)(acts, 0)
    assert [score.total for run in (0, 2) for score in scores[run]] == [6.0] * 4
    assert all(np.isnan(score.total) and score.length == 3 for score in scores[1])


def test_episodes_that_do_not_end_are_named_once(monkeypatch, capsys):
    monkeypatch.setattr("algos.evaluate.LONG", 2)
    evaluate = evaluator("Three-v0")
    evaluate(lambda obs: torch.zeros(*obs.shape[:2], 1), 0)
    evaluate(lambda obs: torch.zeros(*obs.shape[:2], 1), 1)
    said = capsys.readouterr().err
    assert said.startswith("warning: after 2 steps, episodes of the evaluation still go on") and said.count("\n") == 1


def test_an_episode_that_does_not_end_is_cut_after_a_number_of_steps(monkeypatch):
    """Its return counts as one that a time limit cuts: with a discount of 0.1, that of the first state is observed."""
    monkeypatch.setattr("algos.evaluate.LONGEST", 2)
    evaluate = evaluator("Three-v0")
    for _ in range(2):
        assert evaluate(lambda obs: torch.zeros(2, 2, 1), 0) == [[("", 3.0, 2, None)] * 2] * 2
    predicted, observed = evaluate.values(predicting(0.0), np.array([0.1, 0.5]), 0)
    assert predicted.tolist() == pytest.approx([0.0, np.nan], nan_ok=True)
    assert observed.tolist() == pytest.approx([1.2, np.nan], nan_ok=True)


@pytest.mark.filterwarnings("ignore:.*The reward is an? (NaN|inf) value")
def test_a_reward_without_a_number_is_told_once_and_not_taken_for_the_policys_fault(monkeypatch, capsys):
    step = Three.step
    monkeypatch.setattr(Three, "step", lambda self, action: (*(told := step(self, action))[:1], np.nan, *told[2:]))
    evaluate = evaluator("Three-v0")
    for number in range(2):
        evaluate(lambda obs: torch.zeros(*obs.shape[:2], 1), number)
    assert (
        capsys.readouterr().err
        == "warning: the environment of the evaluation gave a reward that is not a finite number\n"
    )
    monkeypatch.undo()
    evaluator("Three-v0")(lambda obs: torch.full((*obs.shape[:2], 1), torch.nan), 0)
    assert capsys.readouterr().err == ""
    envs = SeededEnvs("Three-v0", [0, 1])
    monkeypatch.setattr(Three, "step", lambda self, action: (*(told := step(self, action))[:1], np.inf, *told[2:]))
    for _ in range(2):
        envs.step(torch.zeros(2, 1, 1))
    assert capsys.readouterr().err == "warning: Three-v0 gave a reward that is not a finite number\n"
    monkeypatch.setattr(Three, "step", lambda self, action: (step(self, action)[0] * np.nan, *step(self, action)[1:]))
    for _ in range(2):
        envs.step(torch.zeros(2, 1, 1))
    assert capsys.readouterr().err == "warning: Three-v0 gave an observation that is not a finite number\n"


@pytest.mark.parametrize(("bonus", "returns"), [(0.0, [2.75, 3.5, 3.0]), (10.0, [10.25, 8.5, 3.0])])
def test_observed_values_are_discounted_returns_with_the_bonus_of_later_states(bonus, returns):
    # 3; 2 + 0.5 (b + 3); 1 + 0.5 (b + 2 + 0.5 (b + 3))
    predicted, observed = evaluator("Three-v0", (0, 1), 1).values(predicting(bonus), np.full(2, 0.5), 0)
    assert predicted.tolist() == [1.0, 1.0]
    assert observed == pytest.approx([np.mean(returns)] * 2)


def test_a_return_that_the_time_limit_cuts_counts_only_where_little_is_missing():
    evaluate = evaluator("ThreeCut-v0", (0,), 1)
    predicted, observed = evaluate.values(predicting(0.0), np.array([0.1]), 0)  # the rest weighs 0.001, 0.01, 0.1
    assert predicted.tolist() == [0.5] and observed == pytest.approx([np.mean([1.23, 2.3])])
    predicted, observed = evaluate.values(predicting(0.0), np.array([0.5]), 0)
    assert np.isnan(predicted).all() and np.isnan(observed).all()


def test_a_seeds_values_do_not_depend_on_its_neighbours():
    def noisy(obs, noise):
        return noise, obs[..., 0] + noise[..., 0], torch.zeros(obs.shape[:2])

    discount = np.array([0.9, 0.8, 0.7, 0.6])
    together = evaluator("ThreeOrMore-v0", (0, 1, 2, 3), 2).values(noisy, discount, 7)
    for run, seed in enumerate([0, 1, 2, 3]):
        alone = evaluator("ThreeOrMore-v0", (seed,), 2).values(noisy, discount[run : run + 1], 7)
        assert [x[0] for x in alone] == [x[run] for x in together]


@pytest.mark.parametrize("script", ["sac", "dsac_t"])
def test_scripts_log_both_values_of_every_seed(train, script):
    import pandas as pd

    small = {"hidden": (8,), "batch_size": 8, "learning_starts": 50, "eval_every": 100, "eval_episodes": 1}
    result = train(script, seeds=("0", "1"), env_id="InvertedPendulum-v5", total_steps=200, **small)
    table = pd.read_parquet(result.folder / "train.parquet")
    for metric in ("value_predicted", "value_observed"):
        rows = table[table["metric"] == metric]
        assert sorted(rows[["seed", "step"]].itertuples(index=False, name=None)) == [
            (s, t) for s in (0, 1) for t in (0, 100, 200)
        ]
    observed = table[(table["metric"] == "value_observed") & (table["step"] == 0)]["value"]
    assert (observed.abs() < 200).all() and (observed != 0).all()


def test_without_evaluations_no_episode_is_played_for_values(train, bare_runs, monkeypatch):
    monkeypatch.setattr(Evaluator, "values", None)
    small = {"hidden": (8,), "batch_size": 8, "learning_starts": 10, "eval_every": 10, "eval_episodes": 0}
    assert train("sac", env_id="InvertedPendulum-v5", total_steps=20, **small).code == 0


def test_another_purpose_makes_other_episodes():
    policy = lambda obs: obs[..., :1]  # noqa: E731
    make = maker("InvertedPendulum-v5")
    first, again, other = (
        Evaluator(make, [0, 1], 2)(policy, 7, *purpose) for purpose in ((), ("evaluation",), ("after training",))
    )
    assert first == again
    assert all(
        a.total != b.total for ours, theirs in zip(first, other, strict=True) for a, b in zip(ours, theirs, strict=True)
    )
