"""Commands for trained policies: which runs are meant, exact tables, videos, and exports that act as torch does."""

import importlib.util
import json
import math
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
import sac
import torch
from gymnasium.envs.mujoco.mujoco_env import expand_model_path
from safetensors import safe_open
from safetensors.torch import load_file, save
from scripts import EVALUATED, UPDATED, agent_of

from algos.adapted import Adapted
from algos.cli import run_command
from algos.env_options import options_of
from algos.errors import UserError
from algos.film import CAPTION, SIZE
from algos.policy import PolicyFile, policy_file
from algos.run_folder import folder_of
from benchmarks import evaluate, export, watch
from benchmarks.trained import Place, Trained

SHORT = {"env_id": "InvertedPendulum-v5", "total_steps": 60, "eval_every": 20, "eval_episodes": 2, "hidden": (8, 8)}
needs_onnx = pytest.mark.skipif(importlib.util.find_spec("onnxscript") is None, reason="needs the extra onnx")


class Narrow(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))


def made(folder, **arguments):
    """The folder of a short run of SAC."""
    args = sac.Args(**SHORT | arguments, out=folder, quiet=True, device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("algos.run_folder.versions", dict)
        patch.setattr("algos.run_folder.git_commit", lambda *_: None)
        sac.main(args)
    return folder_of(args, "sac")


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    """The folder of a run on a pendulum, in which nothing is written."""
    return made(tmp_path_factory.mktemp("pendulum"), env_id="Pendulum-v1")


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    return made(tmp_path_factory.mktemp("run"), seeds=("0", "1", "5"))


@pytest.fixture
def run(made_once, tmp_path):
    """The folder of a run of three seeds, which a test may change."""
    return shutil.copytree(made_once, tmp_path / "run")


def command(module, *words):
    """Runs `python -m benchmarks.MODULE WORDS` in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["benchmarks", *map(str, words)])
        run_command(module.main)


def test_ranks_follow_the_last_tenth(run):
    table = pd.read_parquet(run / "eval.parquet")
    table.loc[table["step"] == 60, "return"] = table["seed"].map({0: 3.0, 1: 1.0, 5: 2.0})
    table.loc[table["step"] < 60, "return"] = table["seed"].map({0: 0.0, 1: 9.0, 5: 0.0})
    table.to_parquet(run / "eval.parquet", index=False)
    trained = Trained(run)
    assert trained.scores.tolist() == [3.0, 1.0, 2.0]
    assert trained.numbers(["best", "median", "worst"]) == [0, 2, 1]
    assert trained.numbers([]) == [0, 1, 2] and trained.numbers(["5", "best", "0"]) == [2, 0]
    with pytest.raises(UserError, match="--seeds has 5 twice"):
        trained.numbers(["5", "0", "5"])
    trained.scores[0] = np.nan  # it was not evaluated
    assert trained.numbers(["best"]) == [2] and trained.numbers([]) == [0, 1, 2]
    trained.file.diverged.append(1)
    assert trained.numbers(["worst"]) == [2] and trained.numbers([]) == [0, 2]
    with pytest.raises(UserError, match=r"seed 1 in .* diverged"):
        trained.numbers(["1"])


def test_a_rank_in_one_part_of_a_sweep_says_that_there_are_others(run, tmp_path, capsys):
    parts = [tmp_path / "sweep" / part / "InvertedPendulum-v5" / "sac" / "default" for part in ("seeds_0-2", "seed_7")]
    for part in parts:
        part.parent.mkdir(parents=True)
        shutil.copytree(run, part)
    Trained(run).numbers(["best"])
    Trained(parts[0]).numbers(["0"])
    assert "ranked" not in capsys.readouterr().out
    Trained(parts[0]).numbers(["best"])
    said = capsys.readouterr().out
    assert "seeds are ranked among those of this folder, and there are more of them in seed_7" in said


def test_the_best_seed_of_a_run_with_goals_is_that_with_the_most_successes(run, monkeypatch, capsys):
    """Of two late episodes, seeds 0, 1 and 5 succeed in none, one and both; returns say the opposite."""
    table = pd.read_parquet(run / "eval.parquet")
    table["return"] = -1.0 * table["seed"]
    needed = table["seed"].map({0: 9, 1: 1, 5: 0})  # episodes count from 0
    table.assign(success=(table["episode"] >= needed) == (table["step"] == 60)).to_parquet(
        run / "eval.parquet", index=False, write_page_checksum=True
    )
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"score": "success"}))
    trained = Trained(run)
    assert trained.scores.tolist() == [0.0, 50.0, 100.0] and trained.numbers(["best", "worst"]) == [2, 0]
    trained.measure = "return"  # so that its environment needs no goals
    place = Place(trained)
    frame = pd.DataFrame([(seed, i, -seed, 7, i < seed) for seed in (0, 1, 5) for i in range(10)])
    frame.columns = ["seed", "episode", "return", "length", "success"]
    monkeypatch.setattr(evaluate, "Place", lambda *_: place)
    monkeypatch.setattr(evaluate, "evaluated", lambda *_: frame)
    command(evaluate, run)
    assert "mean over 3 runs 20, std over them 26.46, best seed 5; tables" in capsys.readouterr().out


def test_a_run_near_the_root_of_the_file_system_has_no_other_parts(run):
    trained = Trained(run)
    trained.folder = Path("/run")
    assert trained.numbers(["best"])


def diverge(run, numbers):
    """Makes the runs with these numbers ones that diverged, as far as the file of policies says."""
    path = run / "policy.safetensors"
    with safe_open(path, "pt") as file:
        said = file.metadata() | {"diverged": json.dumps(numbers)}
    path.write_bytes(save(load_file(path), said))


def test_seeds_that_diverged_are_named(run, capsys):
    def evaluated(*words):
        command(evaluate, run, "--episodes", 1, *words)
        name = "-".join(("InvertedPendulum-v5", *map(str, words[1:])))
        said = json.loads((run / "evaluation" / name / "evaluation.json").read_text())
        return capsys.readouterr().out, [key["seed"] for key in said["runs"]], [key["seed"] for key in said["diverged"]]

    out, runs, lost = evaluated()
    assert "because they" not in out and (runs, lost) == ([0, 1, 5], [])
    diverge(run, [1, 2])
    out, runs, lost = evaluated()
    assert "\nleft out, because they diverged: seed 1; seed 5\n" in out and (runs, lost) == ([0], [1, 5])
    assert evaluated("--seeds", "best")[1:] == ([0], [1, 5])
    out, runs, lost = evaluated("--seeds", 0)
    assert "because they" not in out and (runs, lost) == ([0], [])


def test_where_all_seeds_diverged_a_sentence_says_so(run, tmp_path, capsys):
    diverge(run, [0, 1, 2])
    capsys.readouterr()
    for module, *words in (
        (watch,), (export, "--seed", "worst", "--onnx", tmp_path / "p.onnx"), (evaluate, "--seeds", "best"), (evaluate,)
    ):  # fmt: skip
        with pytest.raises(SystemExit) as end:
            command(module, run, *words)
        assert end.value.code == 2 and capsys.readouterr().err == f"error: all runs in {run} diverged\n"


def test_the_path_of_the_policies_stands_for_their_folder(run, capsys):
    command(evaluate, run / "policy.safetensors", "--episodes", 1)
    assert (run / "evaluation" / "InvertedPendulum-v5" / "runs.csv").exists()


def test_settings_choose_among_runs(train, bare_runs, capsys):
    run = train("sac", **SHORT, seeds=("0", "1"), vary=("tau=0.005,0.01",)).folder
    trained = Trained(run)
    assert trained.numbers(["1"]) == [1, 3] and trained.numbers(["1"], ["tau=0.01"]) == [3]
    assert len(trained.numbers(["best"], ["tau=0.005"])) == 1
    assert trained.numbers(["1"], ["tau=.01"]) == trained.numbers(["1"], ["tau=1e-2"]) == [3]
    assert options_of(["a=.5e-3", "b=1.", "c=+0.5", "d=-.1", "e=nan", "f=.", "g=0x1"]) == {
        "a": 0.0005, "b": 1.0, "c": 0.5, "d": -0.1, "e": "nan", "f": ".", "g": "0x1"
    }  # fmt: skip
    with pytest.raises(UserError, match=r"has no run with tau=3; its runs have seed 0, 1; tau 0.005, 0.01"):
        trained.numbers([], ["tau=3"])
    trained.file.diverged += [1, 2]
    assert trained.left_out(["1"]) == [1] and trained.left_out([], ["tau=0.01"]) == [2]
    trained.file.diverged += [3]
    with pytest.raises(UserError, match=r"all runs in .* with tau=0.01 diverged"):
        trained.numbers(["1"], ["tau=0.01"])
    command(evaluate, run, "--episodes", 2, "--seeds", 1, "--setting", "tau=0.01")
    assert "0.01" in capsys.readouterr().out
    (folder,) = (run / "evaluation").iterdir()
    assert pd.read_parquet(folder / "episodes.parquet")["tau"].tolist() == [0.01, 0.01]


def test_an_evaluation_is_the_same_alone_and_among_others(run, tmp_path, capsys):
    command(evaluate, run, "--episodes", 6)
    command(evaluate, run, "--episodes", 3, "--seeds", 5, "--out", tmp_path / "one")
    name = run / "evaluation" / "InvertedPendulum-v5"
    every, one = pd.read_parquet(name / "episodes.parquet"), pd.read_parquet(tmp_path / "one" / "episodes.parquet")
    assert list(every) == ["seed", "episode", "return", "length"] and len(every) == 18
    pd.testing.assert_frame_equal(one, every[(every["seed"] == 5) & (every["episode"] < 3)].reset_index(drop=True))
    rows = pd.read_csv(name / "runs.csv").set_index("seed")
    own = every[every["seed"] == 1]["return"]
    assert rows.loc[1, "mean"] == pytest.approx(own.mean())
    assert rows.loc[1, "standard_error"] == pytest.approx(own.std(ddof=1) / np.sqrt(6))
    said = json.loads((name / "evaluation.json").read_text())
    assert said["episodes"] == 6 and said["step"] == 60 and [r["seed"] for r in said["runs"]] == [0, 1, 5]
    shown = capsys.readouterr().out
    assert "18 episodes" in shown and "mean over 3 runs" in shown


def test_a_larger_evaluation_is_not_replaced_by_a_smaller_one(run, capsys):
    command(evaluate, run, "--episodes", "3")
    table = run / "evaluation" / "InvertedPendulum-v5" / "episodes.parquet"
    before = table.read_bytes()
    with pytest.raises(SystemExit, match="2"):
        command(evaluate, run, "--episodes", "2")
    assert "has 3 episodes of 3 runs already, which 2 of 3 would replace: take as many" in capsys.readouterr().err
    assert table.read_bytes() == before
    with pytest.raises(SystemExit, match="2"):  # of fewer policies
        command(evaluate, run, "--episodes", "9", "--seeds", "0", "--out", table.parent)
    assert "which 9 of 1 would replace" in capsys.readouterr().err
    command(evaluate, run, "--episodes", "4")
    assert len(pd.read_parquet(table)) == 4 * 3
    said = table.with_name("evaluation.json")
    said.write_text(said.read_text().replace('"step": 60', '"step": 50'))  # of earlier policies
    command(evaluate, run, "--episodes", "2")
    assert len(pd.read_parquet(table)) == 2 * 3


@pytest.mark.parametrize(
    ("module", "words"),
    [(evaluate, "--seeds"), (evaluate, "--setting"), (watch, "--seeds"), (watch, "--setting"), (export, "--setting")],
)
def test_words_that_name_nothing_are_refused(run, tmp_path, module, words, capsys):
    before = sorted(run.rglob("*"))
    more = ["--onnx", tmp_path / "p.onnx"] if module is export else []
    with pytest.raises(SystemExit, match="2"):
        command(module, run, *more, words)
    assert f"{words} names nothing: leave it out for all runs" in capsys.readouterr().err
    assert sorted(run.rglob("*")) == before


def test_policies_act_in_another_environment(run, capsys):
    command(evaluate, run, "--episodes", 2, "--env-option", "max_episode_steps=3")
    (folder,) = (run / "evaluation").iterdir()
    assert folder.name == "InvertedPendulum-v5-max_episode_steps-3"
    with pytest.raises(SystemExit, match="2"):
        command(evaluate, run, "--env-option", "reset_noise_scale=-1")
    assert capsys.readouterr().err.startswith(
        "error: InvertedPendulum-v5 cannot begin an episode with these options (ValueError"
    )
    assert (pd.read_parquet(folder / "episodes.parquet")["length"] == 3).all()


def test_another_model_of_mujoco_changes_the_returns(train, bare_runs, tmp_path, monkeypatch):
    run = train("sac", **SHORT | {"env_id": "Hopper-v5"}).folder
    monkeypatch.chdir(tmp_path)
    own = Path(expand_model_path("hopper.xml")).read_text()
    geom = '<geom conaffinity="1" condim="1"'  # of the default class; MuJoCo's own density is 1000
    assert own.count(geom) == 1
    Path("same.xml").write_text(own)
    Path("heavy.xml").write_text(own.replace(geom, f'{geom} density="3000"'))
    returns = {}
    for name, words in (("own", ()), *((n, ("--env-option", f"xml_file=./{n}.xml")) for n in ("same", "heavy"))):
        command(evaluate, run, "--episodes", 3, "--out", tmp_path / name, *words)
        returns[name] = pd.read_parquet(tmp_path / name / "episodes.parquet")["return"].to_numpy()
    np.testing.assert_array_equal(returns["same"], returns["own"])
    assert np.abs(returns["heavy"] - returns["own"]).min() > 0.1


def test_other_bounds_of_actions_are_told(pendulum, tmp_path, capsys):
    run = shutil.copytree(pendulum, tmp_path / "run")
    capsys.readouterr()
    command(evaluate, run, "--episodes", 1)
    assert not capsys.readouterr().err
    trained = Trained(run)
    place, policy = Place(trained, "Pendulum-v1", ["max_episode_steps=5"]), trained.file.policy([0])
    place.evaluator(policy, 1).close()
    assert not capsys.readouterr().err
    policy.agent.task = replace(policy.task, low=(-1.0,), high=(1.0,))
    for _ in range(2):
        place.evaluator(policy, 1).close()
    said = capsys.readouterr().err
    assert said == "warning: actions of the policies are from -1 to 1, and those of Pendulum-v1 are from -2 to 2\n"


def test_episodes_after_training_are_not_those_of_training(pendulum):
    trained = Trained(pendulum)
    place = Place(trained)
    policy = trained.file.policy([0])
    evaluator = place.evaluator(policy, 2)
    then = [score.total for score in evaluator(policy.act, trained.file.step)[0]]
    evaluator.close()
    assert then == pytest.approx(pd.read_parquet(pendulum / "eval.parquet").query("step == 60")["return"].tolist())
    now = evaluate.evaluated(trained, place, [0], 2, 1)["return"].tolist()
    assert min(abs(ours - theirs) for ours in now for theirs in then) > 1e-3


def test_episodes_after_training_depend_on_the_seed_of_a_run_only(pendulum):
    """They are the same however long it has trained, and none of those of its evaluations."""
    trained = Trained(pendulum)
    place, policy = Place(trained), trained.file.policy([0])
    now = evaluate.evaluated(trained, place, [0], 2, 1)["return"].tolist()
    for purpose, same in (("after training", True), ("evaluation", False)):
        evaluator = place.evaluator(policy, 2)
        totals = [score.total for score in evaluator(policy.act, 0, purpose)[0]]
        evaluator.close()
        assert (now == totals) == same


def test_a_table_of_episodes_is_by_hand(run, capsys, monkeypatch):
    """Seed 1 gives no finite action in an episode, and has no mean; its other episodes are no measure."""
    returns = {0: [1.0, 2.0, 6.0], 1: [np.nan, 40.0, 50.0], 5: [3.0, 5.0, 10.0]}
    rows = [(seed, i, value, 7, value > 1.5) for seed, values in returns.items() for i, value in enumerate(values)]
    frame = pd.DataFrame(rows, columns=["seed", "episode", "return", "length", "success"])
    table = evaluate.summary(frame, []).set_index("seed")
    assert table.loc[0, ["episodes", "mean", "min", "median", "max", "length"]].tolist() == [3, 3, 1, 2, 6, 7]
    assert table.loc[0, "standard_error"] == pytest.approx(math.sqrt(7 / 3)) and table.loc[
        0, "std"
    ] ** 2 == pytest.approx(7)
    assert table.loc[0, "success"] == pytest.approx(200 / 3)
    assert table.loc[1, ["mean", "standard_error", "std", "min", "median", "max"]].isna().all()
    monkeypatch.setattr(evaluate, "evaluated", lambda *_: frame.drop(columns="success"))
    command(evaluate, run)
    out = capsys.readouterr().out
    assert "no finite action or reward in some episodes, and so no mean: seed 1\n" in out
    assert "mean over 2 runs 4.5, std over them 2.121, best seed 5" in out


def test_shots_are_the_episodes_that_were_played(train, bare_runs, capsys):
    """In an environment that begins as a shot says, its actions earn the return that is told."""
    trained = Trained(train("sac", **SHORT | {"env_id": "Pendulum-v1", "seeds": ("0", "1", "5")}).folder)
    capsys.readouterr()
    shots = watch.played(trained, Place(trained), [0, 2], 3, [0, 1, 2])
    told = [
        float(line.split("return ")[1].split(" in ")[0].replace(",", ""))
        for line in capsys.readouterr().out.splitlines()
    ]
    for shot, total in zip(shots, told, strict=True):
        env = gym.make(shot.env_id)
        env.reset(seed=shot.seed)
        assert sum(env.step(action)[1] for action in shot.actions) == pytest.approx(total, abs=0.06)
    others = watch.played(trained, Place(trained), [0, 2], 0, [0, 1, 2])
    assert len({shot.seed for shot in [*shots, *others]}) == 4


@needs_onnx
def test_the_policy_of_the_named_seed_is_exported_and_held_to_many_observations(run, tmp_path, capsys):
    command(export, run, "--onnx", tmp_path / "p.onnx", "--seed", 5)
    assert "seed 5 of sac" in capsys.readouterr().out
    trained, model = Trained(run), (tmp_path / "p.onnx").read_bytes()
    groups = export.observed(trained.file.policy([2]), Place(trained))
    assert sum(len(group["obs"]) for group in groups) >= 1_000
    apart = [export.difference(model, trained.file.policy([number]), groups) for number in (0, 1, 2)]
    assert apart[2] < 1e-5 < 1e-3 < min(apart[:2])


def test_a_rank_by_episodes_of_learning_says_so(train, bare_runs, capsys):
    flags = {"env_id": "InvertedPendulum-v5", "eval_episodes": 0, "compile": False}
    run = train("stream_ac", total_steps=300, eval_every=100, **flags).folder
    assert Trained(run).numbers(["0"]) == [0] and not capsys.readouterr().out
    assert Trained(run).numbers(["best"]) == [0] and "the episodes that they learned from" in capsys.readouterr().out


def test_a_run_that_ended_early_is_ranked_by_its_last_score(run):
    """As one that has solved a table before others have, which go on beyond the steps that were asked for."""
    table = pd.read_parquet(run / "eval.parquet")
    table.loc[table["seed"] == 5, "return"] = 1e6
    table[(table["seed"] != 5) | (table["step"] <= 20)].to_parquet(run / "eval.parquet", index=False)
    assert Trained(run).numbers(["best"]) == Trained(run).numbers(["5"])


def test_policies_that_were_scored_before_they_learned_only_have_no_ranks(run, capsys):
    table = pd.read_parquet(run / "eval.parquet")
    table[table["step"] == 0].to_parquet(run / "eval.parquet", index=False)
    with pytest.raises(UserError, match="has no run that was scored after it began to learn; name a seed"):
        Trained(run).numbers(["best"])
    assert Trained(run).numbers(["5"]) == [2]
    table[table["step"] <= 40].to_parquet(run / "eval.parquet", index=False)
    assert len(Trained(run).numbers(["best"])) == 1
    said = "note: seeds are ranked by their scores up to step 40, and the policies are those of step 60\n"
    assert capsys.readouterr().out == said


def test_the_bounds_of_policies_from_data_are_those_of_their_actions(train_short, capsys):
    run = train_short("iql", **EVALUATED).folder  # of actions in [-1, 1], in an environment of -3 to 3
    capsys.readouterr()
    trained = Trained(run)
    policy = trained.file.policy([0])
    assert (policy.task.low, policy.task.high) == ((-3.0,), (3.0,)) and policy.agent.task.high == (1.0,)
    Place(trained, options=["reset_noise_scale=0.02"]).evaluator(policy, 1).close()
    assert not capsys.readouterr().err
    gym.register("Narrow-v0", Narrow)
    Place(trained, "Narrow-v0").evaluator(policy, 1).close()
    said = capsys.readouterr().err
    assert said == "warning: actions of the policies are from -3 to 3, and those of Narrow-v0 are from -1 to 1\n"


def test_levels_of_actions_go_along_to_another_environment(run):
    trained = Trained(run)
    trained.file.environment["options"] = {"levels": [-1, 0, 1]}
    assert Place(trained, "InvertedPendulum-v4", ["frame_skip=3"]).options == {"levels": [-1, 0, 1], "frame_skip": 3}
    trained.file.environment["options"] = {"levels": []}
    assert Place(trained, "InvertedPendulum-v4").options == {}


@pytest.mark.parametrize("option", ["reset_noise_scale=0", "render_fps=false"])
def test_an_option_that_is_nothing_is_an_option(run, option, monkeypatch):
    command(evaluate, run, "--episodes", 1)
    own = (run / "evaluation" / "InvertedPendulum-v5" / "evaluation.json").read_bytes()
    monkeypatch.setattr(Place, "try_out", lambda *_: None)
    monkeypatch.setattr(evaluate, "evaluated", lambda *_: pd.read_parquet(
        run / "evaluation" / "InvertedPendulum-v5" / "episodes.parquet"
    ))  # fmt: skip
    command(evaluate, run, "--episodes", 1, "--env-option", option)
    assert (run / "evaluation" / "InvertedPendulum-v5" / "evaluation.json").read_bytes() == own
    assert len(list((run / "evaluation").iterdir())) == 2


def test_an_option_that_is_taken_away_is_named_too(run, monkeypatch, tmp_path):
    """The run has a time limit of its own; an option set to null is named only if the run has that option."""
    asked = []
    monkeypatch.setattr(Place, "try_out", lambda *_: None)
    monkeypatch.setattr(evaluate, "check_earlier", lambda out, said: asked.append(out.name))
    monkeypatch.setattr(evaluate, "writable", lambda out: 1 / 0)
    begin = Trained.__init__

    def limited(trained, folder):
        begin(trained, folder)
        trained.file.environment["options"] = {"max_episode_steps": 500}

    monkeypatch.setattr(Trained, "__init__", limited)
    for option in (None, "max_episode_steps=null", "frame_skip=null"):
        with pytest.raises(ZeroDivisionError):
            command(evaluate, run, "--episodes", 1, *(["--env-option", option] if option else []))
    assert asked == ["InvertedPendulum-v5", "InvertedPendulum-v5-max_episode_steps-None", "InvertedPendulum-v5"]


def test_runs_in_parts_are_the_same(run, monkeypatch):
    trained = Trained(run)
    whole = evaluate.evaluated(trained, Place(trained), [0, 1, 2], 4, 1)
    for at_once in (4, 3):  # runs apart, and episodes apart
        monkeypatch.setattr(evaluate, "AT_ONCE", at_once)
        parts = evaluate.evaluated(trained, Place(trained), [0, 1, 2], 4, 1)
        pd.testing.assert_frame_equal(whole[["seed", "episode"]], parts[["seed", "episode"]])
        np.testing.assert_allclose(whole["return"], parts["return"])


def test_a_run_without_evaluations_can_be_evaluated(train_short, tmp_path):
    run = train_short("td3_bc").folder  # of a file that names no environment
    command(evaluate, run, "--episodes", 2, "--seeds", 0, "--env-id", "InvertedPendulum-v5", "--out", tmp_path / "new")
    assert len(pd.read_parquet(tmp_path / "new" / "episodes.parquet")) == 2
    with pytest.raises(UserError, match="has no run that was scored after it began to learn; name a seed"):
        Trained(run).numbers(["best"])


def test_options_are_json_or_words():
    assert options_of(["a=1", "b=[1,2]", "c=x.xml", "d=true"]) == {"a": 1, "b": [1, 2], "c": "x.xml", "d": True}
    assert options_of(["a=True", "b=False", "c=None", "d=null"]) == {"a": True, "b": False, "c": None, "d": None}
    for wrong in ("a", "=1", "1=2"):
        with pytest.raises(UserError, match="takes words such as"):
            options_of([wrong])


def test_a_run_of_tables_is_evaluated_exactly(train, bare_runs):
    run = train("gorp", env_id="tabular/lure-0.1", total_steps=40, m=2, k=1, eval_every=20, seeds=("0", "1")).folder
    command(evaluate, run, "--episodes", 7)
    (folder,) = (run / "evaluation").iterdir()
    frame = pd.read_parquet(folder / "episodes.parquet")
    last = pd.read_parquet(run / "eval.parquet").groupby("seed")["return"].last()
    assert len(frame) == 2 and frame["return"].tolist() == last.tolist()


def test_steps_are_those_that_the_evaluated_runs_took(run, capsys):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"taken": [60, 31, 42]}))
    for seeds, said in ((("0", "1", "5"), "sac after 31 to 60 steps in"), (("5",), "sac after 42 steps in")):
        command(evaluate, run, "--episodes", 1, "--seeds", *seeds)
        assert said in capsys.readouterr().out


# -- videos ------------------------------------------------------------------------------------------------------------


def test_without_the_encoder_a_sentence_says_what_to_install(run, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "imageio_ffmpeg" else find(name))
    with pytest.raises(SystemExit, match="2"):
        command(watch, run)
    assert "pip install -e '.[video]'" in capsys.readouterr().err and not (run / "watch.mp4").exists()


def test_an_encoder_that_cannot_be_run_is_found_before_episodes_are_played(run, monkeypatch, capsys):
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setattr(watch, "played", None)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/nonexistent")
    with pytest.raises(SystemExit) as end:
        command(watch, run)
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.startswith("error: there is no video, because the encoder /nonexistent")


@pytest.mark.slow  # like that of a film
def test_without_a_renderer_a_sentence_says_why(run, monkeypatch, capsys):
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setenv("MUJOCO_GL", "none-such")
    with pytest.raises(SystemExit, match="2"):
        command(watch, run)
    assert "rendering InvertedPendulum-v5 failed here (" in capsys.readouterr().err


def test_a_window_shows_each_episode_from_its_seed_with_its_actions(run, monkeypatch, capsys):
    """The environments are real ones without a window, as --human would need a display here."""
    worlds, make_vec = [], watch.make_vec

    def hidden(env_id, count, mode, **options):
        assert options.pop("render_mode") == "human"
        worlds.append(make_vec(env_id, count, mode, **options))
        rewards = worlds[-1].rewards = []
        step = worlds[-1].step
        worlds[-1].step = lambda action: rewards.append(step(action)[1][0])
        return worlds[-1]

    monkeypatch.setattr(watch, "make_vec", hidden)
    trained = Trained(run)
    shots = watch.played(trained, Place(trained), [0, 1], 3, [0, 1])
    told = [float(text.replace(",", "")) for text in re.findall(r"return ([-\d.,]+) in", capsys.readouterr().out)]
    watch.in_window(shots)
    assert capsys.readouterr().out.splitlines() == [shot.caption for shot in shots]
    assert [sum(world.rewards) for world in worlds] == pytest.approx(told, abs=0.05) and len(told) == 2


@pytest.mark.slow
def test_a_video_shows_three_seeds_side_by_side(run, capsys):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    try:
        command(watch, run, "--seconds", 1)
    except SystemExit:
        said = capsys.readouterr().err
        if "rendering InvertedPendulum-v5 failed here" not in said:
            raise
        pytest.skip(said)
    frames = ffmpeg.read_frames(str(run / "watch.mp4"))
    assert next(frames)["size"] == (3 * SIZE, SIZE + CAPTION)
    pictures = [np.frombuffer(frame, np.uint8) for frame in frames]
    assert 2 <= len(pictures) <= 30 and any((picture != pictures[0]).any() for picture in pictures)
    said = capsys.readouterr().out
    assert re.findall(r"^(\w+): seed \d: return ", said, re.M) == ["best", "median", "worst"]


# -- export ------------------------------------------------------------------------------------------------------------


def from_file(script, path):
    agent = agent_of(script, seeds=(4, 1))
    path.write_bytes(policy_file(agent, agent.policy, script.split()[0], {}, 3))
    return PolicyFile(path).policy([1])


def inputs_of(policy, rows=1000):
    inputs = {"obs": torch.randn(rows, 7)}
    inputs |= {"goal": torch.randn(rows, 7)} if policy.with_goals else {}
    return inputs | ({"t": torch.tensor(2)} if policy.timed else {})


@needs_onnx
@pytest.mark.parametrize(
    "script",
    [
        name if name == "stream_ac discrete" else pytest.param(name, marks=pytest.mark.slow)
        for name in UPDATED
        if name != "stream_td"
    ],
)
def test_an_exported_policy_acts_as_torch_does(script, tmp_path):
    policy = from_file(script, tmp_path / "p.safetensors")
    model = export.exported(policy, inputs_of(policy))
    others = [inputs_of(policy), inputs_of(policy, 3)]  # batches of another size
    others += [inputs_of(policy) | {"t": torch.tensor(t)} for t in (0, 1, 7) if policy.timed]
    assert export.difference(model, policy, others) < 1e-5
    assert str(tmp_path).encode() not in model and b"single_file" not in model


@needs_onnx
@pytest.mark.parametrize("script", ["iql", "gcbc"])
def test_a_run_without_an_environment_is_checked_on_made_up_observations(script, train_short, tmp_path, capsys):
    run = train_short(script, seeds=("0",), **({"standardise": True} if script == "iql" else {})).folder
    command(export, run, "--onnx", tmp_path / "p.onnx", "--seed", 0)
    said = capsys.readouterr().out
    assert "torch's actions on 1,000 made up observations, as the run has no environment" in said
    policy, model = Trained(run).file.policy([0]), (tmp_path / "p.onnx").read_bytes()
    (inputs,) = export.made_up(policy)
    assert set(inputs) == {"obs", "goal"} - ({"goal"} if script == "iql" else set())
    with torch.no_grad():
        actions = export.Batched(policy)(**inputs)
    assert export.difference(model, policy, [inputs]) < 1e-5 and actions.std(0).min() > 1e-3
    if script == "iql":
        shift, scale = policy.act.scaling("obs")
        prepared = (inputs["obs"] - shift) / scale
        assert prepared.mean().abs() < 0.1 and prepared.std() == pytest.approx(1, abs=0.1)


@needs_onnx
def test_a_policy_whose_environment_cannot_be_made_here_is_exported_all_the_same(run, tmp_path, monkeypatch, capsys):
    def place(*_):
        raise UserError("there is no such environment here")

    monkeypatch.setattr(export, "Place", place)
    command(export, run, "--onnx", tmp_path / "p.onnx", "--seed", 0)
    said = capsys.readouterr()
    assert "warning: there is no such environment here: observations are made up" in said.err
    assert "on 1,000 made up observations" in said.out and (tmp_path / "p.onnx").exists()
    with pytest.raises(SystemExit):
        command(export, run, "--onnx", tmp_path / "q.onnx", "--seed", 0, "--env-id", "Pendulum-v1")
    assert "error: there is no such environment here" in capsys.readouterr().err


@needs_onnx
def test_an_exported_policy_says_in_which_order_it_takes_an_image(train_short, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(export, "CHECKED", 20)
    run = train_short("stream_q", seeds=("0",), env_id="MinAtar/Breakout-v1").folder
    command(export, run, "--onnx", tmp_path / "p.onnx")
    assert "images of (4, 10, 10) flattened; within" in capsys.readouterr().out


@needs_onnx
def test_a_table_is_exported(train_short, tmp_path):
    run = train_short("sqirl table").folder
    command(export, run, "--onnx", tmp_path / "p.onnx")
    trained = Trained(run)
    policy = trained.file.policy([0])
    assert export.difference((tmp_path / "p.onnx").read_bytes(), policy, export.observed(policy, Place(trained))) == 0


@needs_onnx
@pytest.mark.parametrize("script", ["ppo", pytest.param("iql", marks=pytest.mark.slow)])
def test_an_exported_policy_has_the_normaliser_inside(script, train_short, tmp_path):
    more = EVALUATED | {"standardise": True} if script == "iql" else {}
    run = train_short(script, seeds=("0",), **more).folder
    command(export, run, "--onnx", tmp_path / "p.onnx")
    trained, model = Trained(run), (tmp_path / "p.onnx").read_bytes()
    policy = trained.file.policy([0])
    groups = export.observed(policy, Place(trained))
    assert export.difference(model, policy, groups) < 1e-5
    if script == "ppo":
        policy.agent.args = replace(policy.agent.args, normalise_obs=False)
    else:
        policy.act = Adapted(policy.act.policy, None, policy.act.scaling("action"))
    assert export.difference(model, policy, groups) > 1e-2


@needs_onnx
def test_an_export_that_differs_is_not_written(run, tmp_path, monkeypatch, capsys):
    exported = export.exported

    def other(policy, inputs):
        model = exported(policy, inputs)
        with torch.no_grad():
            policy.agent.actor.bias += 0.1
        return model

    monkeypatch.setattr(export, "exported", other)
    with pytest.raises(SystemExit, match="2"):
        command(export, run, "--onnx", tmp_path / "p.onnx")
    assert "differs from torch's by 0.1" in capsys.readouterr().err and not (tmp_path / "p.onnx").exists()


@needs_onnx
def test_an_export_without_the_time_is_not_written(train, bare_runs, tmp_path, monkeypatch, capsys):
    run = train("gorp", env_id="tabular/lure-0.1", total_steps=400, m=2, k=1, eval_every=400).folder
    command(export, run, "--onnx", tmp_path / "p.onnx")
    assert "within 0 of torch's actions" in capsys.readouterr().out
    real = export.Batched.forward
    exported = export.exported

    def timeless(policy, inputs):
        monkeypatch.setattr(
            export.Batched, "forward", lambda self, obs, goal=None, t=None: real(self, obs, goal, t * 0)
        )
        model = exported(policy, inputs)
        monkeypatch.setattr(export.Batched, "forward", real)
        return model

    monkeypatch.setattr(export, "exported", timeless)
    with pytest.raises(SystemExit, match="2"):
        command(export, run, "--onnx", tmp_path / "q.onnx")
    assert "differs from torch's by" in capsys.readouterr().err


@needs_onnx
def test_a_difference_that_is_no_number_is_one(run, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "exported", lambda *_: b"a model")
    monkeypatch.setattr(export, "difference", lambda *_: float("nan"))
    with pytest.raises(SystemExit, match="2"):
        command(export, run, "--onnx", tmp_path / "p.onnx")
    assert not (tmp_path / "p.onnx").exists()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_an_action_that_is_no_number_stays_the_greatest_difference(lost, monkeypatch):
    """The policy gives 3 for every observation, and the model one that is off by 0, 0.3 and 1.5, in three groups."""
    given = [np.array([[3.0], [3.0 + off]], np.float32) for off in (0.0, 0.3, 1.5)]
    policy = SimpleNamespace(act=lambda obs: torch.full((*obs.shape[:2], 1), 3.0), bounded=lambda action: action)
    groups = [{"obs": torch.zeros(2, 4)}] * 3

    def difference():
        left = iter(given)
        session = SimpleNamespace(run=lambda names, inputs: [next(left)])
        library = SimpleNamespace(InferenceSession=lambda model, providers: session)
        monkeypatch.setitem(sys.modules, "onnxruntime", library)
        return export.difference(b"a model", policy, groups)

    assert difference() == pytest.approx(0.5)
    given[lost][1] = np.nan
    assert math.isnan(difference())


def test_without_onnx_a_sentence_says_what_to_install(run, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnx" else find(name))
    with pytest.raises(SystemExit, match="2"):
        command(export, run, "--onnx", "p.onnx")
    assert "pip install -e '.[onnx]'" in capsys.readouterr().err
