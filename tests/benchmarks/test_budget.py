"""The bandit that chooses among policies, the expected best of k, and the page."""

import itertools
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import synthetic

from algos.errors import UserError
from benchmarks import budget
from benchmarks.budget import bandit, best_of


def test_the_expected_best_of_k_is_the_mean_over_all_draws():
    truth = np.array([3.0, 1.0, 2.0, 7.0])
    expected = [np.mean([max(draw) for draw in itertools.combinations(truth, k)]) for k in (1, 2, 3)]
    assert best_of(truth, 3) == pytest.approx(expected)
    assert best_of(truth, 1)[0] == pytest.approx(truth.mean())


def test_the_critics_choice_among_k_is_the_mean_over_all_draws():
    truth, values = np.array([3.0, 1.0, 2.0, 7.0]), np.array([0.5, 9.0, -1.0, 2.0])
    pairs = [list(draw) for draw in itertools.combinations(range(4), 2)]
    expected = np.mean([truth[draw][values[draw].argmax()] for draw in pairs])
    found = best_of(truth, 4, values)
    assert found[[0, 1, 3]] == pytest.approx([truth.mean(), expected, 1.0])
    assert best_of(truth, 4, truth) == pytest.approx(best_of(truth, 4))
    assert np.isnan(best_of(truth, 4, np.array([0.5, np.nan, -1.0, 2.0]))).all()


def test_of_policies_that_tie_each_is_chosen_as_often():
    truth, values = np.array([0.0, 1.0, 2.0, 6.0]), np.array([5.0, 7.0, 5.0, 7.0])
    draws = [list(draw) for draw in itertools.combinations(range(4), 2)]
    wanted = np.mean([truth[draw][values[draw] == values[draw].max()].mean() for draw in draws])
    assert best_of(truth, 4, values) == pytest.approx([truth.mean(), wanted, 3.5, 3.5])
    assert best_of(truth[::-1], 4, values[::-1]) == pytest.approx(best_of(truth, 4, values))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_returns_that_are_no_numbers_are_refused(value, run, tmp_path):
    budget.main(budget.Args((run,), tmp_path / "page", repetitions=10))
    table = pd.read_csv(tmp_path / "page" / "episodes.csv")
    table.loc[3, "return"] = value
    table.to_csv(tmp_path / "page" / "episodes.csv", index=False)
    with pytest.raises(UserError, match="has returns that are no finite numbers"):
        budget.main(budget.Args((tmp_path / "page",), tmp_path / "again"))


def test_without_noise_one_play_of_each_finds_the_best():
    returns = np.tile(np.array([[1.0], [5.0], [3.0]]), (1, 4))
    chosen = bandit(returns, 3, 6, 200)
    assert (chosen[:, 2:] == 5.0).all()
    assert chosen[:, 0].mean() == pytest.approx(3.0, abs=0.4)  # the first play says nothing of the others
    assert best_of(returns.mean(1), 2)[1] == pytest.approx((5 + 5 + 3) / 3)
    few = bandit(returns, 2, 6, 3_000)[:, -1].mean()
    assert few == pytest.approx((5 + 5 + 3) / 3, abs=0.08)  # the best of two drawn without replacement


class Watched(np.ndarray):
    """Returns [policies, episodes] that keep those of the plays."""

    def __getitem__(self, place):
        found = np.asarray(self)[place]
        if isinstance(place, tuple):  # policy and episode, not the mean of a policy
            self.played.append(found)
        return found


@pytest.mark.parametrize(
    ("means", "expected"),
    [((0, 3, 4), [4, 4, 3, 4, 4, 4, 3, 4, 4, 4, 4, 3, 4]), ((0, 1, 3), [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 1, 3, 3])],
)
def test_the_bandit_plays_the_arm_with_the_highest_upper_bound(means, expected):
    """A bound is mean + spread sqrt(2 ln n / plays), where this is play n.

    Without noise, 0, 3 and 4 have the spread 1.700. The bonus of an arm that was played once is 3.05 in the fifth play:
    3 + 3.05 is below 4 + 3.05 / sqrt(2) = 6.16. It is 3.22 in the sixth: 3 + 3.22 is above 4 + 3.22 / sqrt(3) = 5.86.
    """
    returns = np.tile(np.array(means, float)[:, None], (1, 4)).view(Watched)
    returns.played = []
    bandit(returns, 3, 3 + len(expected), 20)
    played = np.array(returns.played)
    assert (np.sort(played[:3], 0) == np.array(means)[:, None]).all() and len(
        {tuple(game) for game in played[:3].T}
    ) > 3
    assert (played[3:] == np.array(expected)[:, None]).all()


def test_noise_costs_episodes():
    rng = np.random.default_rng(0)
    truth = np.linspace(0, 1, 8)
    quiet, noisy = (bandit(truth[:, None] + s * rng.standard_normal((8, 400)), 8, 100, 400) for s in (0.05, 2.0))
    assert quiet[:, 10].mean() > 0.95 > noisy[:, 10].mean() + 0.1
    assert noisy[:, 99].mean() > noisy[:, 10].mean()


@pytest.fixture
def run(train_short):
    """A run of IQL with two settings and two seeds."""
    from scripts import EVALUATED

    return train_short(
        "iql", seeds=("0", "1"), vary=("expectile=0.6,0.9",), **EVALUATED | {"eval_episodes": 3}, eval_every=10
    ).folder


def test_scripts_log_the_critics_value_of_first_states(run):
    log = pd.read_parquet(run / "train.parquet")
    values = log[log["metric"] == "start_value"]
    assert len(values) == 2 * 2 * 3 and values["value"].nunique() > 2 and np.isfinite(values["value"]).all()


def test_a_page_is_made_of_runs_and_again_of_itself(run, tmp_path, capsys):
    budget.main(budget.Args((run,), tmp_path / "page", plays=20, repetitions=50))
    few = "note: iql on data.hdf5 has 4 policies only: the bandit chooses among these\n"
    assert few in capsys.readouterr().out
    page = (tmp_path / "page" / "page.md").read_text()
    assert "| iql | 4 | 4 | 3 |" in page and (tmp_path / "page" / "figures" / "budget_data.hdf5.png").exists()
    episodes = pd.read_csv(tmp_path / "page" / "episodes.csv")
    assert len(episodes) == 4 * 3 and episodes["value"].notna().all()
    last = pd.read_parquet(run / "eval.parquet").query("step == 20")
    assert sorted(episodes["return"]) == pytest.approx(sorted(last["return"]))
    each = episodes.groupby("policy").agg({"return": "mean", "value": "first"})
    table = pd.read_csv(tmp_path / "page" / "best_of.csv")
    assert table["policies"].tolist() == [1, 2, 3, 4]
    assert table["best"].iloc[[0, -1]].tolist() == pytest.approx(
        [each["return"].mean(), each["return"].max()], rel=1e-4
    )
    assert table["by_value"].iloc[-1] == pytest.approx(each["return"][each["value"].idxmax()], rel=1e-4)
    budget.main(budget.Args((tmp_path / "page",), tmp_path / "again", plays=20, repetitions=50))
    capsys.readouterr()
    budget.main(budget.Args((tmp_path / "page",), tmp_path / "four", policies=4, plays=20, repetitions=50))
    assert "note:" not in capsys.readouterr().out
    for name in ("curves.csv", "best_of.csv", "episodes.csv"):
        assert (tmp_path / "page" / name).read_text() == (tmp_path / "again" / name).read_text()


def test_episodes_of_evaluate_come_first(run, tmp_path):
    from benchmarks import evaluate

    evaluate.main(evaluate.Args(run, episodes=7))
    budget.main(budget.Args((run,), tmp_path / "page", plays=20, repetitions=50))
    assert len(pd.read_csv(tmp_path / "page" / "episodes.csv")) == 4 * 7


@pytest.mark.parametrize("what", ["another environment", "some seeds"])
def test_episodes_of_evaluate_elsewhere_or_of_some_policies_do_not_count(what, run):
    from benchmarks import evaluate

    options = {"env_option": ("reset_noise_scale=0.1",)} if what == "another environment" else {"seeds": ("0",)}
    evaluate.main(evaluate.Args(run, episodes=7, **options))
    rows = budget.of_run(run, json.loads((run / "config.json").read_text()))
    last = pd.read_parquet(run / "eval.parquet").query("step == 20")
    assert rows.groupby("policy").size().tolist() == [3] * 4
    assert sorted(rows["return"]) == pytest.approx(sorted(last["return"]))


def test_an_evaluation_that_a_kill_left_half_does_not_count(run):
    half = run / "evaluation" / "half"
    half.mkdir(parents=True)
    shutil.copy(run / "eval.parquet", half / "episodes.parquet")  # its evaluation.json comes last
    rows = budget.of_run(run, json.loads((run / "config.json").read_text()))
    assert rows.groupby("policy").size().tolist() == [3] * 4


def test_policies_with_fewer_episodes_are_compared_on_all_goals_alike(tmp_path):
    """Of 6 and of 3 episodes to each of two goals, of which the first is always reached, and the second never."""
    for seed, each in enumerate((6, 3)):
        rows = [(seed, 10, f"task{goal}", episode, 1.0, goal == 1) for goal in (1, 2) for episode in range(each)]
        table = pd.DataFrame(rows, columns=["seed", "step", "task", "episode", "return", "success"])
        synthetic.store(tmp_path / str(seed), "gciql", table, "maze-v0", score="success")
    table, _ = budget.episodes_of((tmp_path,))
    returns, _ = budget.matrix(table)
    assert returns.shape == (2, 6) and returns.mean(1).tolist() == [50.0, 50.0]
    budget.main(budget.Args((tmp_path,), tmp_path / "page", plays=20, repetitions=50))
    assert "![success (%) of the chosen policy on maze-v0]" in (tmp_path / "page" / "page.md").read_text()


def test_the_values_are_the_last_ones_of_the_log(run):
    log = pd.read_parquet(run / "train.parquet")
    last = log[(log["metric"] == "start_value") & (log["step"] == 20)].set_index(["seed", "expectile"])["value"]
    log.iloc[::-1].to_parquet(run / "train.parquet", write_page_checksum=True)
    rows = budget.of_run(run, json.loads((run / "config.json").read_text()))
    found = rows.groupby(["seed", "expectile"])["value"].agg(["first", "nunique"])
    assert (found["nunique"] == 1).all() and found["first"].tolist() == pytest.approx(last.sort_index().tolist())


def test_all_policies_have_as_many_episodes_as_the_fewest():
    rows = pd.DataFrame({
        "algorithm": "iql", "task": "made", "policy": [0, 0, 0, 1, 1], "episode": [0, 1, 2, 0, 1],
        "return": [1.0, 2.0, 9.0, 3.0, 4.0], "value": [5.0, 5.0, 5.0, 6.0, 6.0],
    })  # fmt: skip
    returns, values = budget.matrix(rows)
    assert returns.tolist() == [[1.0, 2.0], [3.0, 4.0]] and values.tolist() == [5.0, 6.0]


def test_policies_of_different_steps_and_unfinished_ones_are_named():
    def notes(*runs: tuple[int, str]) -> list[str]:
        sources = [
            {"algorithm": "iql", "env_id": "a", "variant": "default", "step": step, "status": status, "seeds": [seed]}
            for seed, (step, status) in enumerate(runs)
        ]
        return budget.notes_of(sources)

    assert not notes((1_000, "finished"), (1_000, "finished"))
    (note,) = notes((1_000, "finished"), (1_000, "finished"), (300, "interrupted"))
    assert note.endswith("or not of the last: step 1,000: seeds 0, 1; step 300 (not finished): seed 2.")
    assert "of iql on a are those of different steps" in note and notes((300, "interrupted"))


def test_a_policy_that_diverged_keeps_its_last_score(run, tmp_path, capsys):
    from benchmarks import evaluate

    evaluate.main(evaluate.Args(run, episodes=7))
    (folder,) = (run / "evaluation").iterdir()
    config, said = (json.loads(path.read_text()) for path in (run / "config.json", folder / "evaluation.json"))
    lost, played = said["runs"].pop(1), pd.read_parquet(folder / "episodes.parquet")
    config["diverged"] = [lost | {"step": 15}]
    of_lost = (played["seed"] == lost["seed"]) & (played["expectile"] == lost["expectile"])
    played[~of_lost].to_parquet(folder / "episodes.parquet", write_page_checksum=True)
    table = pd.read_parquet(run / "eval.parquet")
    own = (table["seed"] == lost["seed"]) & (table["expectile"] == lost["expectile"])
    table = table[~(own & (table["step"] == 20))]
    table.to_parquet(run / "eval.parquet", write_page_checksum=True)
    (run / "config.json").write_text(json.dumps(config))
    (folder / "evaluation.json").write_text(json.dumps(said))
    rows = budget.of_run(run, config)
    assert "6 episodes of each policy, after training" in capsys.readouterr().out
    assert sorted(rows.groupby("policy").size()) == [
        6,
        7,
        7,
        7,
    ]  # whole repetitions of three, so that the mean is its own
    last = table[own[table.index] & (table["step"] == 10)]["return"].tolist()
    mine = rows[(rows["seed"] == lost["seed"]) & (rows["expectile"] == lost["expectile"])]
    assert mine["return"].tolist() == pytest.approx(last * 2)
    (folder / "evaluation.json").write_text(json.dumps(said | {"step": 10}))  # made before the run went on
    assert budget.of_run(run, config).groupby("policy").size().tolist() == [3] * 4
    assert "3 episodes of each policy, of its last evaluation" in capsys.readouterr().out


def test_one_policy_is_no_choice(train_short, run, tmp_path, capsys):
    from scripts import EVALUATED

    folder = train_short("bc", **EVALUATED).folder
    with pytest.raises(UserError, match="no algorithm has two policies on a task"):
        budget.main(budget.Args((folder,), tmp_path / "page"))
    assert "note: bc on data.hdf5 has one policy, and is left out" in capsys.readouterr().out
    budget.main(budget.Args((folder, run), tmp_path / "page", plays=20, repetitions=50))
    assert "bc" not in (tmp_path / "page" / "best_of.csv").read_text()


def test_a_policy_that_diverged_before_it_was_scored_is_left_out(run):
    config, table = json.loads((run / "config.json").read_text()), pd.read_parquet(run / "eval.parquet")
    lost = {"seed": 1, "expectile": 0.9}
    own = (table["seed"] == 1) & (table["expectile"] == 0.9)
    table[~own | (table["step"] == 0)].to_parquet(run / "eval.parquet", write_page_checksum=True)
    rows = budget.of_run(run, config | {"diverged": [lost | {"step": 5}]})
    assert rows["policy"].nunique() == 3 and not ((rows["seed"] == 1) & (rows["expectile"] == 0.9)).any()


def test_of_several_evaluations_the_one_with_most_episodes_counts(run):
    from benchmarks import evaluate

    evaluate.main(evaluate.Args(run, episodes=2))
    evaluate.main(evaluate.Args(run, episodes=5, seeds=("0", "1")))
    rows = budget.of_run(run, json.loads((run / "config.json").read_text()))
    assert rows.groupby("policy").size().tolist() == [5] * 4


def test_policies_that_are_given_twice_are_refused(run, tmp_path):
    budget.main(budget.Args((run,), tmp_path / "page", plays=20, repetitions=50))
    for twice in ((run, run), (run, run.parent), (tmp_path / "page", run), (tmp_path / "page", tmp_path / "page")):
        with pytest.raises(UserError, match=r"seed 0 of iql \(expectile=0\.6\) on data\.hdf5 occurs twice"):
            budget.main(budget.Args(twice, tmp_path / "other"))
    assert not (tmp_path / "other").exists()
    shutil.copytree(run, tmp_path / "longer")  # the same seeds with another argument are other policies
    config = json.loads((run / "config.json").read_text())
    config["identity"]["batch_size"] += 1
    (tmp_path / "longer" / "config.json").write_text(json.dumps(config))
    assert budget.episodes_of((run, tmp_path / "longer"))[0]["policy"].nunique() == 8
