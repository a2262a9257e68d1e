"""Stored reports are what the code makes of their own tables now: the same words and numbers, and as many figures."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import tyro

from benchmarks import figures, report

RESULTS = Path(__file__).parents[1] / "results"
STORED = sorted(path.parent.name for path in RESULTS.glob("*/report.json"))


@pytest.mark.slow
@pytest.mark.parametrize("name", STORED)
def test_a_stored_report_is_made_again_word_by_word(name, tmp_path, monkeypatch):
    def save(figure, path, formats):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".png").touch()

    monkeypatch.setattr(figures, "save", save)
    monkeypatch.setattr(figures, "lay_out", lambda figure: None)
    stored = json.loads((RESULTS / name / "report.json").read_text(encoding="utf-8"))
    args = tyro.cli(report.Args, args=shlex.split(stored["report"])[3:])
    folder, again = RESULTS / name, tmp_path / name
    report.main(replace(args, folders=(folder,), out=again, mix=bool(stored["notes"])))
    own = {"check.md", "figures/mixtures.png"}  # of other commands
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} - own
    assert {p.relative_to(again).as_posix() for p in again.rglob("*") if p.is_file()} == files
    for file in sorted(files):
        if file.endswith(".md"):
            assert (again / file).read_text(encoding="utf-8") == (folder / file).read_text(encoding="utf-8"), file
        elif file.endswith(".csv"):  # the last digits are those of another processor
            pd.testing.assert_frame_equal(*(pd.read_csv(place / file) for place in (again, folder)), rtol=1e-4)
