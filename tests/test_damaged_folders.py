"""Damaged folders of runs and reports: every reader refuses them in one sentence, or goes on rightly with a warning.

The tables of damages are generated: every kind of damage for every file, and for every entry and column that is read.
"""

import errno
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dqn
import numpy as np
import pandas as pd
import pytest
import sqirl
import torch
from safetensors.torch import load_file, save_file
from synthetic import store, tabulate

from algos.cli import report_errors
from algos.evaluate import TableEvaluator
from algos.run import Run
from algos.run_folder import folder_of
from benchmarks import edge_of_reach, effective_horizon, index, more_data, plan, report
from benchmarks.suite import ROOT

TASK = "tabular/gate-0.375"
SHORT = {
    "env_id": TASK, "seeds": ("0", "1"), "total_steps": 30, "eval_every": 10, "checkpoint_every": 10, "log_every": 5,
    "learning_starts": 0, "train_every": 2, "target_every": 6, "batch_size": 8, "hidden": (8,), "device": "cpu",
}  # fmt: skip


class Killed(BaseException):
    """What a kill is to the process."""


def with_export(patch: pytest.MonkeyPatch) -> None:
    """Lets every run export a file that cannot be made again from a final checkpoint."""
    register = Run.register

    def registering(run: Run, *more: Any, **parts: Any) -> None:
        register(run, *more, **parts)
        run.export("note.txt", lambda: None if run.final else str(run.step).encode())

    patch.setattr(Run, "register", registering)


def arguments(out: Path, **more: Any) -> dqn.Args:
    return dqn.Args(**{"out": out, "quiet": True, **SHORT, **more})


def folder(out: Path) -> Path:
    return folder_of(arguments(out), "dqn")


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """Folders with a finished run of DQN, one killed at step 25, finished ones of SQIRL, and two reports."""
    place = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("algos.run_folder.versions", dict)
        patch.setattr("algos.run_folder.git_commit", lambda *_: None)
        with_export(patch)
        dqn.main(arguments(place / "whole"))
        patch.setattr(Run, "_report_progress", lambda run: run.step == 25 and kill())
        with pytest.raises(Killed):
            dqn.main(arguments(place / "killed"))
        patch.undo()
        patch.setattr("algos.run_folder.git_commit", lambda *_: None)
        common = {"env_id": TASK, "form": "table", "k": 1, "m": 2, "total_steps": 40, "eval_every": 20}
        sqirl.main(sqirl.Args(**common, seeds=("0:5",), out=place / "tables", device="cpu", quiet=True))
    synthetic(place / "runs")
    report.main(
        report.Args((place / "runs",), place / "report", replications=20, formats=(), page=False, references="raw")
    )
    return place


def kill(*_: Any) -> None:
    raise Killed


def synthetic(place: Path) -> None:
    """Runs with values of critics and of a model, as a sweep leaves them."""
    rows = [(seed, step, 0, float(seed + step)) for seed in range(3) for step in range(0, 101, 50)]
    table = pd.DataFrame(rows, columns=["seed", "step", "episode", "return"])
    model = {"penalty_weight": 0.0, "real_ratio": 0.05, "dynamics": "", "model_mix": 0.0, "mix_with": "true"}
    for name, change in (("learned", {}), ("half", {"model_mix": 0.5}), ("true", {"dynamics": "true"})):
        path = store(place, "mopo", table, "Walker2d-v5", name, args=model | change)
        train = table.rename(columns={"return": "value"}).drop(columns="episode")
        names = ("policy_value", "value_predicted", "value_observed")
        pd.concat([train.assign(metric=metric) for metric in names]).to_parquet(path / "train.parquet")
    told = {"suite": "s", "purpose": "p", "command": "c", "commit": None, "date": "2026-01-01"}
    (place / "sweep.json").write_text(json.dumps(told))
    (place / "suite.toml").write_text('score = "last"\n')


# -- damages -----------------------------------------------------------------------------------------------------------

Damage = Callable[[Path], None]


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def as_folder(path: Path) -> None:
    remove(path)
    path.mkdir()


def as_dangling_link(path: Path) -> None:
    remove(path)
    path.symlink_to(path.with_name("nowhere"))


def as_pipe(path: Path) -> None:
    remove(path)
    os.mkfifo(path)


def written(content: bytes) -> Damage:
    return lambda path: path.write_bytes(content) and None


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


ANY_FILE: dict[str, Damage] = {
    "empty": written(b""), "text": written(b"nonsense, {\n"), "no text": written(b"\xff\xfe\x00"), "folder": as_folder,
    "dangling link": as_dangling_link, "half": truncated, "pipe": as_pipe,
}  # fmt: skip
ANY_JSON: dict[str, Damage] = ANY_FILE | {
    "list": written(b"[1]"), "null": written(b"null"), "number": written(b"3"), "deep": written(b"[" * 100_000),
    "deep entry": written(b'{"identity": ' + b'{"a": ' * 50_000), "huge": written(b'{"step": ' + b"9" * 5_000 + b"}"),
    "surrogate": written(b'{"algorithm": "\\ud800"}'),
}  # fmt: skip
WRONG: dict[str, list[Any]] = {
    "text": [None, 3, ["a"]], "whole": ["3", -1, 1.5, True, 10**30, math.nan], "number": ["x", math.nan, True, 10**400],
    "list": [None, 3, "x", {"a": 1}], "table": [None, 3, "x", [1]], "truth": [None, "yes", 1],
}  # fmt: skip
ABSENT = object()


def changed(path: Path, keys: tuple[Any, ...], value: Any) -> None:
    """Puts a value, or its absence, into a JSON file."""
    content = inner = json.loads(path.read_text())
    for key in keys[:-1]:
        inner = inner[key] if isinstance(inner, list) else inner.setdefault(key, {})
    if value is ABSENT:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    path.write_text(json.dumps(content))


def entries(needed: dict[str, str], others: dict[str, str], prefix: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Every entry absent where it is needed, and with every value of a wrong kind."""
    for name, kind in (needed | others).items():
        keys = (*prefix, *name.split("."))
        for value in [*WRONG[kind], *([ABSENT] if name in needed else [])]:
            shown = "absent" if value is ABSENT else str(value)[:12]
            yield pytest.param(lambda path, k=keys, v=value: changed(path, k, v), id=f"{name} {shown}")


def plain(damages: dict[str, Damage]) -> list[Any]:
    return [pytest.param(damage, id=name) for name, damage in damages.items()]


def table(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Damage:
    """Changes a table of either format."""

    def damage(path: Path) -> None:
        if path.suffix == ".csv":
            change(pd.read_csv(path)).to_csv(path, index=False)
        else:
            change(pd.read_parquet(path)).to_parquet(path, index=False)

    return damage


def columns(words: tuple[str, ...], wholes: tuple[str, ...], numbers: tuple[str, ...]) -> Iterator[Any]:
    """Every column absent and with values of a wrong kind, and a row twice."""
    for name in (*words, *wholes, *numbers):
        yield pytest.param(table(lambda t, n=name: t.drop(columns=n)), id=f"{name} absent")
    for name in (*wholes, *numbers):
        yield pytest.param(table(lambda t, n=name: t.assign(**{n: "many"})), id=f"{name} words")
    for name in wholes:
        for value in (0.5, math.nan, -5, math.inf):
            yield pytest.param(table(lambda t, n=name, v=value: t.assign(**{n: v})), id=f"{name} {value}")
    for name in words:
        yield pytest.param(table(lambda t, n=name: t.assign(**{n: None})), id=f"{name} nothing")
    yield pytest.param(table(lambda t: pd.concat([t, t.tail(1)])), id="a row twice")
    yield pytest.param(table(lambda t: pd.concat([t, t])), id="all rows twice")


CONFIG = list(
    entries(
        {"algorithm": "text", "env_id": "text", "variant": "text", "status": "text"},
        {
            "task": "text", "step": "whole", "diverged": "list", "identity": "table", "facts": "table", "args": "table",
            "versions": "table", "varied": "list", "identity.seeds": "list", "identity.total_steps": "whole",
            "args.eval_episodes": "whole", "identity.env_option": "list", "facts.low": "number",
            "facts.transitions": "whole",
        },
    )
)  # fmt: skip
CONFIG = [case for case in CONFIG if not case.id.startswith(("identity.total_steps None", "diverged {"))]
EVAL = list(columns((), ("seed", "step"), ("return",)))
TRAIN = list(columns(("metric",), ("seed", "step"), ("value",)))


# -- readers -----------------------------------------------------------------------------------------------------------


def contents(place: Path) -> dict[str, Any]:
    """All that is below a place, without locks."""
    found: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        if path.name != ".lock":
            link = os.readlink(path) if path.is_symlink() else None
            found[str(path.relative_to(place))] = link or (path.read_bytes() if path.is_file() else "folder")
    return found


@pytest.fixture
def refused(capsys, tmp_path):
    """Checks that a command ends with one sentence that names a file, and that it changes nothing."""

    def check(command: Callable[[], None], *named: str) -> str:
        before = contents(tmp_path)
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            report_errors(command)
        said = capsys.readouterr().err
        assert end.value.code == 2 and said.startswith("error: ") and said.count("\n") == 1, said
        assert not named or any(name in said for name in named), said
        assert contents(tmp_path) == before
        return said

    return check


@pytest.fixture
def copied(made, tmp_path, monkeypatch):
    """Gives a copy of what was made to a test, which may resume it."""
    monkeypatch.setattr("algos.run_folder.versions", dict)
    monkeypatch.setattr("algos.run_folder.git_commit", lambda *_: None)
    monkeypatch.setattr("algos.tables.Tables.show", lambda *_: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with_export(monkeypatch)

    def copy(name: str) -> Path:
        shutil.copytree(made / name, tmp_path / name)
        return tmp_path / name

    return copy


def resume(out: Path) -> Callable[[], None]:
    return lambda: dqn.main(arguments(out, resume=True))


def make_report(*folders: Path) -> Callable[[], None]:
    out = folders[0].parent / "new"
    return lambda: tabulate(report.Args(folders, out, replications=20, formats=(), page=False, references="raw"))


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", plain(ANY_JSON) + CONFIG)
def test_a_configuration_of_any_content_is_refused(copied, refused, damage):
    out = copied("whole")
    path = folder(out) / "config.json"
    damage(path)
    refused(resume(out), "config.json", "another configuration")
    refused(make_report(out), "config.json")
    assert plan.state_of(path.parent) == "damaged"
    assert plan.earlier_runs(out) == [] and plan.stored_runs(out.parent) == {}


@pytest.mark.parametrize("out", ["whole", "killed"])
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(
            pytest.param(f"{kind}.parquet", d, id=f"{kind} {n}")
            for kind in ("eval", "train")
            for n, d in ANY_FILE.items()
        ),
        *(pytest.param("eval.parquet", *case.values, id=f"eval {case.id}") for case in EVAL),
        *(pytest.param("train.parquet", *case.values, id=f"train {case.id}") for case in TRAIN),
        *(pytest.param(f"{kind}.parquet", remove, id=f"{kind} gone") for kind in ("eval", "train")),
    ],
)
def test_a_table_of_any_content_is_refused(copied, refused, out, name, damage):
    finished, out = out == "whole", copied(out)
    damage(folder(out) / name)
    refused(resume(out), name)
    if finished and (damage is not remove or name == "eval.parquet"):
        refused(make_report(out), name)
    assert plan.state_of(folder(out)) == "damaged"


@pytest.mark.parametrize(
    "change", [lambda t: t.iloc[:-1], lambda t: t.iloc[:0], lambda t: t.assign(seed=t["seed"] + 5)]
)
def test_a_table_that_lost_rows_is_refused(copied, refused, change):
    out = copied("killed")
    path = folder(out) / "eval.parquet"
    frame = pd.read_parquet(path)
    change(frame[frame["step"] <= 20]).to_parquet(path, index=False)
    refused(resume(out), "eval.parquet")


def test_a_run_without_its_checkpoints_is_not_begun_anew(copied, refused):
    out = copied("killed")
    shutil.rmtree(folder(out) / "checkpoint")
    assert "has come to step 20 and has no checkpoint" in refused(resume(out))
    (folder(out) / "checkpoint").write_bytes(b"a file")
    refused(resume(out), "checkpoint")


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e308])
def test_returns_that_are_all_no_numbers_are_no_scores(copied, refused, value):
    out = copied("whole")
    table(lambda t: t.assign(**{"return": value}))(folder(out) / "eval.parquet")
    assert "has a return that is a finite number" in refused(make_report(out))


def test_rows_of_a_seed_that_the_run_does_not_have_are_refused(copied, refused):
    out = copied("whole")
    table(lambda t: t.assign(seed=t["seed"] + 1))(folder(out) / "eval.parquet")
    refused(make_report(out), "eval.parquet")


@pytest.mark.parametrize("damage", [as_dangling_link, written(b"a file")])
def test_a_file_in_the_place_of_a_run_is_set_aside_by_a_sweep(copied, damage, capsys):
    out = copied("whole")
    remove(folder(out))
    folder(out).mkdir()
    (remove if damage is as_dangling_link else shutil.rmtree)(folder(out)) if damage is not as_dangling_link else None
    damage(folder(out))
    assert plan.state_of(folder(out)) == "damaged"
    plan.set_aside(folder(out), out)
    assert plan.state_of(folder(out)) == "new" and "is damaged" in capsys.readouterr().err


# -- checkpoints -------------------------------------------------------------------------------------------------------


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Damage:
    """Changes the tensors of a checkpoint, whose digest is then right again."""

    def damage(path: Path) -> None:
        file = path.with_suffix(".safetensors")
        state = load_file(file)
        save_file(change(state) or state, file)
        changed(path, ("sha256",), hashlib.sha256(file.read_bytes()).hexdigest())

    return damage


def each_part() -> Iterator[Any]:
    """The first tensor of every part with another name, shape, type, and without it."""
    for part in ("agent", "replay", "random", "envs"):

        def first(state: dict[str, torch.Tensor], part: str = part) -> str:
            return min(name for name in state if name.startswith(part) and state[name].dim())

        def renamed(state, first=first):
            state[f"{first(state)}_other"] = state.pop(first(state))

        def longer(state, first=first):
            state[first(state)] = torch.cat([state[first(state)], state[first(state)]]).contiguous()

        def deeper(state, first=first):
            state[first(state)] = state[first(state)][None].contiguous()

        def of_halves(state, first=first):
            state[first(state)] = state[first(state)].to(torch.float16)

        def without(state, first=first):
            del state[first(state)]

        def without_all(state, part=part):
            return {name: tensor for name, tensor in state.items() if not name.startswith(part)}

        for change in (renamed, longer, deeper, of_halves, without, without_all):
            yield pytest.param(tensors(change), id=f"{part} {change.__name__}")


CHECKPOINT = list(
    entries(
        {
            "sha256": "text", "final": "truth", "done": "list", "taken": "list", "seconds": "number",
            "diverged": "table", "episodes": "list", "phases": "table", "over": "list",
        },
        {},
    )
)  # fmt: skip
VALUES = [
    ("done", [20]), ("done", [20, 20, 20]), ("done", []), ("diverged", {"7": 1}), ("diverged", {"x": 1}),
    ("episodes", [[9, 1.0, 1]]), ("episodes", [["0", 1.0, 1]]), ("taken", [1]), ("sha256", "0" * 64),
    ("evaluation_rows", "4"), ("train_rows", "4"), ("train_rows", -1),
]  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        *plain(ANY_JSON), *CHECKPOINT, *each_part(),
        *(pytest.param(lambda path, c=case: changed(path, (c[0],), c[1]), id=str(case)[:30]) for case in VALUES),
        *(
            pytest.param(lambda path, d=d: d(path.with_suffix(".safetensors")), id=f"tensors {name}")
            for name, d in (ANY_FILE | {"gone": remove}).items()
        ),
        pytest.param(tensors(lambda state: state | {"late/x": torch.zeros(1)}), id="a part that is none"),
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(copied, made, capsys, damage):
    out = copied("killed")
    damage(max((folder(out) / "checkpoint").glob("*.json")))
    resume(out)()
    said = capsys.readouterr().err
    assert said.startswith("warning: checkpoint ") and said.endswith("and was passed over\n") and said.count("\n") == 1
    same_run(folder(out), folder(made / "whole"))


def test_when_all_checkpoints_are_damaged_that_is_said(copied, refused):
    out = copied("killed")
    for path in (folder(out) / "checkpoint").glob("*.json"):
        changed(path, ("done",), [1])
    assert "are damaged or do not fit this run" in refused(resume(out))


def same_run(ours: Path, other: Path) -> None:
    """Both have the same tables, tensors, files and configuration, except for dates, seconds and bytes."""
    tables, states, configs, files = [], [], [], []
    for place in (ours, other):
        log = pd.read_parquet(place / "train.parquet")
        tables.append(log[log["metric"] != "seconds"].reset_index(drop=True))
        (path,) = (place / "checkpoint").glob("*.safetensors")
        states.append(load_file(path))
        config = json.loads((place / "config.json").read_text())
        measured = ("args", "seconds", "evaluation_seconds", "peak_bytes", "date", "commit", "versions")
        configs.append({name: value for name, value in config.items() if name not in measured})
        files.append({name for name in contents(place) if not name.startswith("tensorboard")})
    pd.testing.assert_frame_equal(*tables)
    assert (ours / "eval.parquet").read_bytes() == (other / "eval.parquet").read_bytes()
    assert (ours / "note.txt").read_bytes() == (other / "note.txt").read_bytes() == b"30"
    assert configs[0] == configs[1] and files[0] == files[1]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


# -- the end of a run --------------------------------------------------------------------------------------------------


class Disk:
    """Lets the first operations on files that end a run pass, and ends it at the next one."""

    def __init__(self, patch: pytest.MonkeyPatch, passes: int, error: type[BaseException], *reason: Any):
        self.left, self.error, self.reason, self.armed = passes, error, reason, False
        finish = Run._finish

        def finishing(run: Run, *more: Any) -> None:
            self.armed = True
            finish(run, *more)

        patch.setattr(Run, "_finish", finishing)
        for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink"), (Run, "_write_config")):
            patch.setattr(owner, name, self.counted(getattr(owner, name)))

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self.armed and self.left == 0:
                raise self.error(*self.reason)
            self.left -= self.armed
            return function(*args, **options)

        return call


def ends(command: Callable[[], None], passes: int, error: type[BaseException], *reason: Any) -> bool:
    """Whether a command ends without having come to the operation at which an error is raised."""
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, passes, error, *reason)
        try:
            report_errors(command)
        except (Killed, SystemExit):
            return False
    return True


@pytest.mark.parametrize("way", ["killed", "full disk"])
def test_a_run_that_ends_badly_at_any_point_is_mended_by_resume(copied, made, tmp_path, refused, way, capsys):
    for passes in range(40):
        out = copied("killed")
        if way == "killed":
            ended = ends(resume(out), passes, Killed)
        else:
            ended = ends(resume(out), passes, OSError, errno.ENOSPC, "No space left on device")
            said = capsys.readouterr().err
            assert ended or (said.startswith("error: cannot write to ") and said.count("\n") == 1)
        if not ended:
            resume(out)()
        same_run(folder(out), folder(made / "whole"))
        shutil.rmtree(out)
        if ended:
            break
    assert passes > 12


def test_a_kill_while_a_checkpoint_of_the_same_step_is_replaced_loses_nothing(copied, tmp_path, made):
    """All runs may diverge, or a signal may come, at the step of a checkpoint that the final one replaces."""
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "_report_progress", lambda run: setattr(run.signals, "came", run.step == 30))
        with pytest.raises(SystemExit):
            dqn.main(arguments(out, checkpoint_every=1_000))
    assert len(list((folder(out) / "checkpoint").glob("*.json"))) == 1
    for passes in range(40):
        shutil.copytree(out, tmp_path / "copy")
        if not (ended := ends(resume(tmp_path / "copy"), passes, Killed)):
            resume(tmp_path / "copy")()
        same_run(folder(tmp_path / "copy"), folder(made / "whole"))
        shutil.rmtree(tmp_path / "copy")
        if ended:
            break
    assert passes > 12


# -- divergence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_return_that_is_no_number_is_a_divergence_and_changes_no_other_run(
    tmp_path, made, monkeypatch, capsys, value
):
    evaluate = TableEvaluator.__call__

    def broken(evaluator, policy, step):
        scores = evaluate(evaluator, policy, step)
        if max(step) >= 20:
            scores[0] = [score._replace(total=value) for score in scores[0]]
        return scores

    monkeypatch.setattr(TableEvaluator, "__call__", broken)
    dqn.main(arguments(tmp_path, quiet=False))
    said = capsys.readouterr()
    assert "warning: seed 0 diverged before step 20" in said.err and str(value) not in said.out.split()
    config = json.loads((folder(tmp_path) / "config.json").read_text())
    assert config["status"] == "diverged" and config["diverged"] == [{"seed": 0, "step": 20}]
    ours, other = (pd.read_parquet(folder(out) / "eval.parquet") for out in (tmp_path, made / "whole"))
    assert np.isfinite(ours["return"]).all() and ours[ours["seed"] == 0]["step"].max() == 10
    pd.testing.assert_frame_equal(*(frame[frame["seed"] == 1].reset_index(drop=True) for frame in (ours, other)))
    states = [load_file(next(folder(out).glob("checkpoint/*.safetensors"))) for out in (tmp_path, made / "whole")]
    assert all(torch.equal(tensor[1], states[1][name][1]) for name, tensor in states[0].items() if tensor.dim())


# -- reports -----------------------------------------------------------------------------------------------------------


SOURCES = [
    *entries(
        {"algorithm": "text", "env_id": "text", "variant": "text", "status": "text"},
        {"diverged": "list", "identity": "table", "args": "table", "versions": "table"},
        (0,),
    ),
    pytest.param(lambda path: changed(path, (0, "algorithm"), "other"), id="another name"),
    pytest.param(lambda path: changed(path, (0, "seeds"), [0]), id="fewer seeds"),
    pytest.param(lambda path: changed(path, (0, "versions"), {"gymnasium": []}), id="a version that is none"),
    pytest.param(lambda path: path.write_text("[]"), id="no sources"),
]
TEXTS = ("title", "purpose", "references", "score", "report")
LISTS = ("published", "notes", "sweeps", "commands", "commits", "devices", "dates")
REPORT = [
    *entries(dict.fromkeys(TEXTS, "text") | dict.fromkeys(LISTS, "list"), {}),
    pytest.param(lambda path: changed(path, ("sweeps",), [{"suite": "x"}]), id="half a sweep"),
    pytest.param(lambda path: changed(path, ("score",), "worst"), id="unknown score"),
    pytest.param(lambda path: changed(path, ("published",), ["x" * 5_000]), id="long name"),
]
KEYS = ("task", "algorithm")
OF_REPORTS = {
    "sources.json": [*plain(ANY_JSON), *SOURCES],
    "report.json": [*plain(ANY_JSON), *REPORT],
    "scores.csv": [*plain(ANY_FILE), *columns(KEYS, ("seed", "step", "episodes"), ("return",))],
    "values.csv": [*plain(ANY_FILE), *columns(KEYS, ("seed", "step"), ("predicted", "observed"))],
    "watched.csv": [*plain(ANY_FILE), *columns((*KEYS, "metric"), ("seed", "step"), ("value",))],
}
NOT_HALF = ("half",)  # of a table, half may be a sound table: its first rows


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(name, *case.values, id=f"{name} {case.id}")
        for name, cases in OF_REPORTS.items()
        for case in cases
        if not (name.endswith(".csv") and case.id in NOT_HALF)
    ],
)
def test_a_stored_report_of_any_content_is_refused(copied, refused, name, damage):
    place = copied("report")
    damage(place / name)
    refused(make_report(place), name, "--published")
    if name != "report.json":
        refused(lambda: edge_of_reach.main(edge_of_reach.Args(place)), name)


@pytest.mark.parametrize("name", ["scores.csv", "sources.json"])
def test_a_report_that_lost_a_file_is_refused(copied, refused, name):
    place = copied("report")
    remove(place / name)
    refused(make_report(place), name)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(
            pytest.param("sweep.json", *case.values, id=f"sweep {case.id}")
            for case in [*plain(ANY_JSON), *entries(dict.fromkeys(("suite", "purpose", "command", "date"), "text"), {})]
        ),
        *(
            pytest.param("suite.toml", damage, id=f"suite {number}")
            for number, damage in enumerate([
                *(ANY_FILE[kind] for kind in ("text", "no text", "folder", "dangling link")), written(b"score = 3"),
                written(b'score = "worst"'), written(b"title = []"), written(b'published = "x"'),
                written(b"references = 1"), written(b"a = " + b"[" * 50_000), written(b"a = " + b"9" * 5_000),
            ])
        ),
    ],
)  # fmt: skip
def test_what_a_sweep_left_is_refused_whatever_is_in_it(copied, refused, name, damage):
    place = copied("runs")
    damage(place / name)
    refused(make_report(place), name)


INDEX = {
    "report.json": [*plain(ANY_JSON), *REPORT[:-1]],
    "sources.json": [*plain(ANY_JSON), *SOURCES[:8]],
    "tasks.csv": [*plain(ANY_FILE), *columns((*KEYS, "score"), (), ("mean", "low", "high", "std", "seeds", "steps"))],
    "check.md": [pytest.param(d, id=n) for n, d in ANY_FILE.items() if n in ("no text", "folder", "dangling link")],
}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(name, *case.values, id=f"{name} {case.id}")
        for name, cases in INDEX.items()
        for case in cases
        if not (name.endswith(".csv") and case.id in NOT_HALF) and "[1]" not in case.id
    ],
)
def test_the_index_refuses_a_damaged_report(copied, refused, tmp_path, name, damage):
    place = copied("report")
    (place / "check.md").write_text("# check\n")
    damage(place / name)
    if (place / "check.md").is_symlink():
        return  # it is not there
    refused(lambda: index.main(index.Args(tmp_path)), name)


def test_aggregates_are_checked_by_the_index(copied, refused, tmp_path):
    place = copied("report")
    changed(place / "report.json", ("references",), "d4rl")
    frame = pd.DataFrame([("last", "a", "IQM", 1.0, 0.0, 2.0, 1, 3)])
    frame.columns = ["score", "algorithm", "statistic", "value", "low", "high", "tasks", "seeds"]
    for damage in (ANY_FILE["text"], ANY_FILE["folder"], *(case.values[0] for case in columns(
        ("score", "algorithm", "statistic"), (), ("value", "low", "high", "tasks", "seeds")
    ))):  # fmt: skip
        frame.to_csv(place / "aggregates.csv", index=False)
        damage(place / "aggregates.csv")
        refused(lambda: index.main(index.Args(tmp_path)), "aggregates.csv")
        remove(place / "aggregates.csv")


@pytest.mark.parametrize("page", [effective_horizon, more_data])
@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("args",), ABSENT), (("args",), {}), (("args", "discount"), "x"), (("args", "k"), "one"), (("args", "m"), 0),
        (("args", "total_steps"), -1), (("args", "discount"), 7.0), (("env_id",), "Hopper-v5"), (("status",), "so"),
        (("task",), "tabular/none-such"),
    ],
)  # fmt: skip
def test_pages_refuse_runs_that_lack_what_they_need(copied, refused, tmp_path, page, keys, value):
    place = copied("tables")
    (path,) = place.rglob("config.json")
    if keys == ("env_id",):
        changed(path, ("task",), value)
    changed(path, keys, value)
    if (page, keys) in [(effective_horizon, ("args", "m")), (more_data, ("args", "discount"))]:
        return  # it is not read
    refused(lambda: page.main(page.Args((place,), tmp_path / "page")), "config.json", "tabular", "default")


def test_a_page_on_models_refuses_a_report_without_their_values(copied, refused):
    place = copied("report")
    remove(place / "watched.csv")
    refused(lambda: edge_of_reach.main(edge_of_reach.Args(place)), "watched.csv")


@pytest.mark.parametrize("key", ["dynamics", "model_mix", "mix_with", "real_ratio", "penalty_weight"])
def test_a_page_on_models_refuses_runs_without_their_arguments(copied, refused, key):
    place = copied("report")
    for value in (ABSENT, None, []):
        shutil.copy(place / "sources.json", place.parent / "kept")
        changed(place / "sources.json", (0, "args", key), value)
        refused(lambda: edge_of_reach.main(edge_of_reach.Args(place)), "arguments of mopo")
        shutil.move(place.parent / "kept", place / "sources.json")


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux lists them")
def test_tables_are_read_without_threads_that_could_outlive_a_program(tmp_path):
    """Arrow's may abort or hold up a program when it ends: github.com/apache/arrow, issues 34314 and 50482."""
    pd.DataFrame({"seed": np.arange(1000), "return": 0.5}).to_parquet(tmp_path / "table.parquet")
    count = "import os\nprint(len(os.listdir('/proc/self/task')))"
    read = f"table = read_parquet(Path({str(tmp_path / 'table.parquet')!r}))\nassert len(table) == 1000"
    code = f"from pathlib import Path\nfrom algos.stored import read_parquet\n{count}\n{read}\n{count}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.split()
    assert before == after
