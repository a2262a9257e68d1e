"""The page on how well ensembles predict."""

import json
import re

import h5py
import mopo
import numpy as np
import pandas as pd
import pytest

from algos.data import load
from algos.errors import UserError
from benchmarks.ensembles import Args, falling, listing, main, trained, variances
from benchmarks.timing import data_file, random_file


def curve(*errors: list[float]) -> pd.DataFrame:
    """Errors by epoch, a list for each seed."""
    rows = [(seed, epoch, e) for seed, own in enumerate(errors) for epoch, e in enumerate(own, 1)]
    return pd.DataFrame(rows, columns=["seed", "epoch", "error"]).assign(task="t")


def test_a_seed_has_trained_until_its_error_stands_still():
    """The second one stands still from its third epoch on, where it was by chance what it is in the second."""
    assert trained(curve([5, 4, 3, 2], [5, 3, 4, 4])).tolist() == [4, 3]


def test_the_seed_that_falls_least_often_counts_and_ten_epochs_do():
    down = list(range(20, 0, -1))
    assert falling(curve(down, down)) == (10, 10)
    assert falling(curve(down, [*down[:3], *down[2:-1]])) == (9, 10)
    assert falling(curve(down, [*down[:12], 50, *down[13:]])) == (10, 10)
    assert falling(curve([3, 2, 1])) == (2, 2)


def test_a_row_has_means_over_elites_and_seeds():
    """Errors of 1 and 3 of variances 10 and 5: 0.1 and 0.6 are unexplained; the worst member is no elite."""
    rows = [
        (seed, member, member < 2, output, error * (member + 1) / 1.5, variance, 0.4, 0.8 if seed else 0.9)
        for seed in (0, 1)
        for member in (0, 1, 2)
        for output, error, variance in (("obs 0", 1.0, 10.0), ("reward", 3.0, 5.0), ("obs 1", 0.0, 0.0))
    ]
    names = ["seed", "member", "elite", "output", "error", "variance", "inside_50", "inside_90"]
    table = pd.DataFrame(rows, columns=names).assign(task="t")
    ((_, seeds, epochs, unexplained, worst, inside_50, inside_90, spread, fell),) = listing(
        table, curve([3, 2, 1], [3, 2, 2])
    ).rows
    assert (seeds[0], epochs[0], unexplained[0], worst[0]) == ("2", "2 to 3", "0.3500", "0.6000 (reward)")
    assert (inside_50[0], inside_90[0], fell[0]) == ("40", "85", "1 of 2")
    assert spread[0] == "0.333"  # of 2/3 and 4/3


@pytest.fixture
def runs(tmp_path):
    """A folder with a run that trained the ensembles of two seeds."""
    data = random_file(tmp_path / "random.hdf5", 2_000, 3, 2)
    flags = {"seeds": ("0", "4"), "total_steps": 1, "eval_every": 1, "eval_episodes": 0, "never_terminates": True}
    small = {"rollouts": 4, "rollout_length": 1, "dynamics_hidden": (8,), "hidden": (8,), "dynamics_epochs": 3}
    common = {"dataset": str(data), "quiet": True, "device": "cpu", "members": 3, "elites": 2}
    common |= {"vary": ("penalty_weight=0,1",)}  # settings of a seed share its ensemble
    mopo.main(mopo.Args(**flags, **small, **common, out=tmp_path / "runs"))
    return tmp_path / "runs"


def test_a_page_of_a_run(runs, tmp_path):
    main(Args((runs,), tmp_path / "page"))
    page = (tmp_path / "page" / "page.md").read_text()
    assert "| 2 | 3 to 3 |" in page
    assert re.search(r"\n`python -m benchmarks\.ensembles .*`, commit [0-9a-f]{12}\+?\n$", page)
    table = pd.read_csv(tmp_path / "page" / "ensembles.csv")
    assert len(table) == 2 * 3 * 4
    variance = table.groupby("output")["variance"].unique().explode().astype(float)
    np.testing.assert_allclose(variance, [2, 2, 2, 1], rtol=0.1)  # of differences of normal numbers, and of such a one
    curves = pd.read_csv(tmp_path / "page" / "curves.csv")
    assert curves.groupby("seed")["epoch"].max().to_dict() == {0: 3, 4: 3}
    assert (tmp_path / "page" / "figures" / "ensembles.png").exists()
    (config,) = json.loads((tmp_path / "page" / "sources.json").read_text())
    assert str(tmp_path) not in json.dumps(config["args"] | {"dataset": ""})


def test_a_seed_that_diverged_is_left_out_and_named(runs, tmp_path):
    (path,) = runs.rglob("dynamics.csv")
    table = pd.read_csv(path)
    table.loc[table["seed"] == 4, ["error", "inside_50", "inside_90"]] = np.nan
    table.to_csv(path, index=False)
    main(Args((runs,), tmp_path / "page"))
    page = (tmp_path / "page" / "page.md").read_text()
    assert "| 1 | 3 to 3 |" in page and "Left out, as they diverged: seeds 4 of" in page
    for name in ("ensembles", "curves"):
        assert set(pd.read_csv(tmp_path / "page" / f"{name}.csv")["seed"]) == {0}
    path.write_text(table.assign(error=np.nan).to_csv(index=False))
    with pytest.raises(UserError, match="there is no finished ensemble"):
        main(Args((runs,), tmp_path / "page"))


@pytest.mark.parametrize("standardise", [False, True])
def test_variances_are_of_the_transitions_from_which_dynamics_are_learned(tmp_path, standardise):
    """Where next observations after an end are those of another episode, which jump far, they do not count."""
    steps = np.cumsum(np.random.default_rng(0).normal(size=(1_000, 3)), 0) + 1_000 * (np.arange(1_000) // 100)[:, None]
    path = data_file(tmp_path / "walk.hdf5", steps, np.zeros((1_000, 2)), np.arange(1_000.0))
    with h5py.File(path, "r+") as file:
        file["terminals"][...] = np.arange(1, 1_001) % 100 == 0
        file["timeouts"][...] = False
    config = {"task": str(path), "args": {"standardise": standardise}, "facts": {"digest": load(str(path)).digest}}
    found = variances(config, tmp_path)
    scale = steps.std(0) ** 2 if standardise else np.ones(3)
    np.testing.assert_allclose([found[f"obs {i}"] for i in range(3)], 1 / scale, rtol=0.15)


def test_what_is_no_ensemble_or_damaged_is_refused(runs, tmp_path):
    with pytest.raises(UserError, match="there is no finished ensemble"):
        main(Args((tmp_path / "nowhere",), tmp_path / "page"))
    with pytest.raises(UserError, match=r"have ensembles of .*: give one"):
        main(Args((runs, runs), tmp_path / "page"))
    (path,) = runs.rglob("dynamics.csv")
    aside = tmp_path / "damaged"  # a run that a sweep has set aside has no configuration, and is passed over
    aside.mkdir()
    (aside / "dynamics.csv").write_text("damaged")
    with pytest.raises(UserError, match="there is no finished ensemble"):
        main(Args((aside,), tmp_path / "page"))
    data = tmp_path / "random.hdf5"
    kept = data.read_bytes()
    random_file(data, 1_900, 3, 2)
    with pytest.raises(UserError, match=r"random.hdf5 is not what the ensembles in .* were trained on"):
        main(Args((runs,), tmp_path / "page"))
    data.write_bytes(kept)
    path.write_text(path.read_text().replace("inside_50", "other"))
    with pytest.raises(UserError, match=r"dynamics.csv is damaged: it has no column 'inside_50'"):
        main(Args((runs,), tmp_path / "page"))
    config = json.loads((path.with_name("config.json")).read_text())
    path.with_name("config.json").write_text(json.dumps(config | {"status": "interrupted"}))
    with pytest.raises(UserError, match="there is no finished ensemble"):
        main(Args((runs,), tmp_path / "page"))
