"""Evaluation, and values predicted against values observed."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from algos.evaluate import Evaluator


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
CPU = torch.device("cpu")


def foresee(bonus: float):
    """Predicts the number of steps done so far."""

    def function(obs, noise):
        return noise, obs[..., 0], torch.full(obs.shape[:2], bonus)

    return function


def test_returns_and_lengths_are_of_whole_episodes():
    returns, lengths = Evaluator("Three-v0", [0, 1], 2, CPU)(lambda obs: torch.zeros(2, 2, 1), 0)
    assert (returns == 6).all() and (lengths == 3).all() and returns.shape == (2, 2)


@pytest.mark.parametrize(("bonus", "returns"), [(0.0, [2.75, 3.5, 3.0]), (10.0, [10.25, 8.5, 3.0])])
def test_observed_values_are_discounted_returns_with_the_bonus_of_later_states(bonus, returns):
    # 3; 2 + 0.5 (b + 3); 1 + 0.5 (b + 2 + 0.5 (b + 3))
    predicted, observed = Evaluator("Three-v0", [0, 1], 1, CPU).values(foresee(bonus), 0.5, 0)
    assert predicted.tolist() == [1.0, 1.0]
    assert observed == pytest.approx([np.mean(returns)] * 2)


def test_a_return_that_the_time_limit_cuts_counts_only_where_little_is_missing():
    evaluator = Evaluator("ThreeCut-v0", [0], 1, CPU)
    predicted, observed = evaluator.values(foresee(0.0), 0.1, 0)  # what is unseen weighs 0.001, 0.01 and 0.1
    assert predicted.tolist() == [0.5] and observed == pytest.approx([np.mean([1.23, 2.3])])
    predicted, observed = evaluator.values(foresee(0.0), 0.5, 0)
    assert np.isnan(predicted).all() and np.isnan(observed).all()


def test_a_seeds_values_do_not_depend_on_its_neighbours():
    def noisy(obs, noise):
        return noise, obs[..., 0] + noise[..., 0], torch.zeros(obs.shape[:2])

    together = Evaluator("ThreeOrMore-v0", [0, 1, 2, 3], 2, CPU).values(noisy, 0.9, 7)
    for run, seed in enumerate([0, 1, 2, 3]):
        alone = Evaluator("ThreeOrMore-v0", [seed], 2, CPU).values(noisy, 0.9, 7)
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
