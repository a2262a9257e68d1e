"""The leaderboard of methods with goals."""

import json
import os
import shutil

import pandas as pd
import pytest

from algos.errors import UserError
from benchmarks.leaderboard import Args, main, published, stored, tables
from benchmarks.suite import ROOT

RESULTS = ROOT / "results"


def test_the_stored_page_is_that_of_the_stored_reports(tmp_path):
    main(Args(RESULTS, tmp_path))
    for name in ("page.md", "success.csv"):
        wanted, found = ((folder / name).read_text() for folder in (RESULTS / "leaderboard", tmp_path))
        found = found.replace(f"]({os.path.relpath(RESULTS, tmp_path)}/", "](../")  # links lead from where the page is
        assert found.rsplit("`python", 1)[0] == wanted.rsplit("`python", 1)[0]


def test_stored_success_is_that_of_the_reports():
    found = stored(RESULTS)
    row = found[(found["dataset"] == "antmaze-medium-navigate-v0") & (found["method"] == "OTA")].iloc[0]
    tasks = pd.read_csv(RESULTS / "antmaze_short" / "tasks.csv")
    mean, low, high = tasks[(tasks["algorithm"] == "ota") & (tasks["score"] == "three")][["mean", "low", "high"]].iloc[
        0
    ]
    assert row["mean"] == mean and row["text"] == f"{mean:.0f} [{low:.0f}, {high:.0f}]"
    assert row["runs"].startswith("ours (antmaze_short): 100,000 updates of batches of 256, networks 3 × 256; 3 seeds")
    assert not found.duplicated(["dataset", "runs", "method"]).any()


@pytest.mark.parametrize(
    ("name", "value"), [("anchors", "trajectories"), ("goal", "position"), ("loss", "mse"), ("augment", 0.5)]
)
def test_other_forms_of_cloning_and_variants_are_left_out(name, value, tmp_path):
    folder = tmp_path / "pointmaze_short"
    shutil.copytree(RESULTS / "pointmaze_short", folder)
    sources = json.loads((folder / "sources.json").read_text())
    assert {run["algorithm"].upper() for run in sources} == set(stored(tmp_path)["method"])
    for run in sources:
        if run["algorithm"] == "gcbc":
            run["args"][name] = value
        else:
            run["variant"] = "other"
    (folder / "sources.json").write_text(json.dumps(sources))
    assert not len(stored(tmp_path))


def test_methods_of_ones_own_are_left_out_with_a_note(tmp_path, capsys):
    folder = tmp_path / "mine"
    shutil.copytree(RESULTS / "pointmaze_short", folder)
    for name in ("sources.json", "tasks.csv"):
        (folder / name).write_text((folder / name).read_text().replace("gcivl", "mine"))
    assert "MINE" not in set(stored(tmp_path)["method"])
    assert f"note: mine of {folder} are no columns of this table, and are left out" in capsys.readouterr().out


def test_runs_on_data_of_another_origin_have_a_row_of_their_own(tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(RESULTS / "pointmaze_short", folder)
    sources = json.loads((folder / "sources.json").read_text())
    tables_of = pd.read_csv(folder / "tasks.csv")
    task, theirs = (f"{origin}/pointmaze-medium-navigate-v0" for origin in ("local", "ogbench"))
    sources += [{**source, "task": theirs} for source in sources if source["task"] == task]
    (folder / "sources.json").write_text(json.dumps(sources))
    more = tables_of[tables_of["task"] == task].assign(task=theirs)
    pd.concat([tables_of, more]).to_csv(folder / "tasks.csv", index=False)
    own = stored(tmp_path).query("dataset == 'pointmaze-medium-navigate-v0'")
    assert own["runs"].str.contains("ours (mine, ogbench's data)", regex=False).sum() * 2 == len(own) > 4
    texts = [text for row in tables(own)["pointmaze"].rows for text, _ in row]
    assert len(tables(own)["pointmaze"].rows) == 2 and not any("dtype" in text for text in texts)


def test_rows_stand_under_their_dataset_and_methods():
    own = pd.DataFrame({"dataset": ["cube-single-play-v0"], "runs": ["ours"], "method": ["CRL"], "text": ["7 [5, 9]"]})
    made = tables(pd.concat([published(), own]).sort_values("dataset", kind="stable"))
    assert next(iter(made)) == "cube"  # families of which there are runs of ours come first
    table = made["cube"]
    texts = [[text for text, _ in row] for row in table.rows]
    rows = {(row[0], row[1]): dict(zip(table.columns, row, strict=True)) for row in texts}
    assert rows["cube-single-play-v0", "ours"]["CRL"] == "7 [5, 9]"
    assert rows["cube-single-play-v0", "ours"]["GCIQL"] == "–"
    assert rows["cube-single-play-v0", "published"]["GCIQL"] == "68 ± 6"
    assert rows["cube-single-noisy-v0", "published"]["QRL"] == "25"  # a mean without spread


def test_a_folder_without_such_reports_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no report on methods with goals in"):
        main(Args(tmp_path, tmp_path / "out"))
