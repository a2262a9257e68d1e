"""Suites are checked before anything starts: one sentence, naming file and key."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from algos.errors import UserError
from benchmarks import suite as suites
from benchmarks import sweep

GOOD = """
purpose = "a test"
tasks = ["Hopper-v5", "HalfCheetah-v5"]
seeds = "0:3"
total_steps = 1000
eval_every = 100
eval_episodes = 2
references = "d4rl"

[flags]
hidden = [8, 8]

[algorithms.sac]

[algorithms.slow_sac]
script = "sac"
flags = { critic_lr = 1e-5, compile = false }
tasks.Hopper-v5 = { discount = 0.999 }
"""


def write(folder, text):
    path = folder / "mine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", sorted(p.stem for p in (suites.BENCHMARKS / "suites").glob("*.toml")))
def test_a_shipped_suite_is_sound(name):
    if "minatar" in name:
        pytest.importorskip("minatar")
    suite = suites.read(suites.find(name))
    assert suite.name == name and suite.entries and len(suite.seeds) >= 3
    assert all(entry.args[task].task == task for entry in suite.entries for task in suite.tasks)


def test_the_smoke_suite_is_two_algorithms_on_two_tasks_with_three_seeds():
    suite = suites.read(suites.find("smoke"))
    assert (len(suite.entries), len(suite.tasks), len(suite.seeds)) == (2, 2, 3)


def test_the_papers_protocol_is_twenty_steps_per_update_and_a_score_of_ten_evaluations():
    suite = suites.read(suites.find("dsac_t_paper"))
    (entry,) = suite.entries
    args = entry.args["Hopper-v5"]
    updates = args.total_steps // args.env_steps_per_update
    assert updates == 1_500_000 and args.eval_every // args.env_steps_per_update == 15_000
    assert suite.score == "max" and suite.seeds == [12345, 22345, 32345, 42345, 52345]
    late = [s for s in range(0, args.total_steps + 1, args.eval_every) if s > 0.9 * args.total_steps]
    assert len(late) == 10


def test_flags_are_the_scripts_own_and_those_of_a_task_come_last(tmp_path):
    suite = suites.read(write(tmp_path, GOOD))
    sac, slow = suite.entries
    assert (sac.variant, slow.variant, slow.algorithm) == ("default", "slow_sac", "sac")
    assert sac.args["Hopper-v5"].critic_lr == 1e-3 and slow.args["Hopper-v5"].critic_lr == 1e-5
    assert slow.args["Hopper-v5"].discount == 0.999 and slow.args["HalfCheetah-v5"].discount == 0.99
    assert sac.args["Hopper-v5"].hidden == (8, 8) and suite.seeds == [0, 1, 2]
    words = slow.flags["Hopper-v5"]
    assert words[words.index("--hidden") + 1 :][:2] == ["8", "8"] and "--no-compile" in words


WRONG = {
    "is missing": ("total_steps = 1000\n", "", "total_steps"),
    "did you mean purpose": ("purpose", "purpos", "purpos"),
    "did you mean sac": ("[algorithms.sac]", "[algorithms.saq]", "algorithms.saq"),
    "there is no script 'a2c'": ('script = "sac"', 'script = "a2c"', "algorithms.slow_sac.script"),
    "sac has no flag 'critic_rate'": ("critic_lr", "critic_rate", "algorithms.slow_sac.flags.critic_rate"),
    "sac has no flag 'hiden'; did you mean hidden": ("hidden", "hiden", "flags.hiden"),
    "must be float, got 'fast'": ("1e-5", '"fast"', "algorithms.slow_sac.flags.critic_lr"),
    "must be int, got '100'": ("eval_every = 100", 'eval_every = "100"', "eval_every"),
    "must be int, got True": ("eval_every = 100", "eval_every = true", "eval_every"),
    "critic-lr must be above 0, got -1.0": ("1e-5", "-1.0", "algorithms.slow_sac"),
    "total_steps must be at least 1": ("total_steps = 1000", "total_steps = 0", "total_steps"),
    "seeds must not be negative": ('"0:3"', "[0, -1]", "seeds"),
    "must differ from each other": ('"0:3"', "[1, 1]", "seeds"),
    "names no seed": ('"0:3"', '"3:3"', "seeds"),
    "takes whole numbers": ('"0:3"', '"a"', "seeds"),
    "the closest ids are Hopper-v5": ("Hopper-v5", "Hoper-v5", "algorithms.sac on Hoper-v5"),
    "occurs twice": ('"HalfCheetah-v5"]', '"Hopper-v5"]', "tasks[1]"),
    "not among the suite's tasks": ("tasks.Hopper-v5", "tasks.Ant-v5", "algorithms.slow_sac.tasks"),
    "has no row for": ('"HalfCheetah-v5"]', '"Pendulum-v1"]', "references"),
    "there is no table 'd5rl'": ('"d4rl"', '"d5rl"', "references"),
    "for raw scores, leave references out": ('"d4rl"', '"raw"', "references"),
    "score must be": ("[flags]", 'score = "median"\n[flags]', "score"),
    "has its own key": ("[8, 8]", "[8, 8]\nseeds = 3", "flags.seeds"),
    "names a folder": ("slow_sac]", '"slow/sac"]', "algorithms.slow/sac"),
    "must be list[str]": ('"HalfCheetah-v5"]', "3]", "tasks"),
    "hidden must be": ("[8, 8]", "[8, 16.5]", "flags.hidden"),
    "would share a folder": ("slow_sac]", "default]", "algorithms.default"),
    "algorithms names no algorithm": ("[algorithms", "[[", "algorithms"),
    "Expected": ("seeds =", "seeds", "mine.toml"),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_said_in_one_sentence_that_names_file_and_key(tmp_path, message):
    old, new, key = WRONG[message]
    text = GOOD.replace(old, new)
    if message == "algorithms names no algorithm":
        text = GOOD.split("[flags]")[0] + "[algorithms]\n"
    with pytest.raises(UserError) as error:
        suites.read(write(tmp_path, text))
    said = str(error.value)
    assert message in said and "mine.toml" in said and key in said and "\n" not in said


def test_an_unknown_suite_is_refused_with_the_shipped_ones():
    with pytest.raises(UserError, match=r"mujoco_1m.*did you mean smoke"):
        suites.find("smok")


def test_a_script_of_ones_own_is_found_beside_the_suite(tmp_path):
    lines = ["from dataclasses import dataclass", "from algos.run import RunArgs", "@dataclass", "class Args(RunArgs):"]
    (tmp_path / "mine.py").write_text("\n".join([*lines, "    x: int = 1"]))
    text = GOOD.replace("[algorithms.sac]", '[algorithms.own]\nscript = "mine.py"\nflags.x = 2').replace("hidden", "#")
    suite = suites.read(write(tmp_path, text))
    assert suite.entries[0].args["Hopper-v5"].x == 2
    for hint, value in (("Literal[1, 3]", "1.0"), ("Literal[1, 3]", "true"), ("torch.device", '"cpu"')):
        more = ["import torch", "from typing import Literal", *lines, f"    x: {hint} = 1"]
        (tmp_path / "mine.py").write_text("\n".join(more))
        with pytest.raises(UserError, match=r"algorithms\.own\.flags\.x must be "):
            suites.read(write(tmp_path, text.replace("flags.x = 2", f"flags.x = {value}")))
    (tmp_path / "mine.py").write_text("import nothing_like_that\n")
    with pytest.raises(UserError, match="ModuleNotFoundError"):
        suites.read(write(tmp_path, text))


def test_tables_of_scores_are_checked(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("task,low,high,source\nHopper-v5,1,1,x\n")
    with pytest.raises(UserError, match="low is not below high"):
        suites.read_references(table)
    table.write_text("task,low,high\n")
    with pytest.raises(UserError, match="no column 'source'"):
        suites.read_references(table)
    table.write_text("task,low,high,source\nHopper-v5,a,b,x\n")
    with pytest.raises(UserError, match="low must hold numbers"):
        suites.read_references(table)


VARIED = GOOD.replace(
    "[algorithms.slow_sac]",
    '[algorithms.grid]\nscript = "sac"\nvary = { critic_lr = [1e-4, 1e-3], tau = [0.005, 1] }\n\n[algorithms.slow_sac]',
)


def test_a_varied_algorithm_has_the_words_of_vary_on_every_task(tmp_path):
    plain, grid, slow = suites.read(write(tmp_path, VARIED)).entries
    words = ("critic_lr=0.0001,0.001", "tau=0.005,1")
    assert all(args.vary == words for args in grid.args.values())
    flags = grid.flags["Hopper-v5"]
    assert tuple(flags[flags.index("--vary") + 1 :][:2]) == words
    assert all(args.vary == () for entry in (plain, slow) for args in entry.args.values())
    assert "--vary" not in plain.flags["Hopper-v5"] and (grid.algorithm, grid.variant) == ("sac", "grid")


def test_a_sweep_stores_which_cells_it_trains_by_the_names_of_reports(tmp_path):
    """Those of the entries that it is given: a sweep until something is decided trains two."""
    suite = suites.read(write(tmp_path, VARIED))
    sweep.describe(replace(suite, entries=suite.entries[1:]), tmp_path)
    stored = json.loads((tmp_path / "sweep.json").read_text())
    cells = [[name, task] for name in ("sac (grid)", "sac (slow_sac)") for task in suite.tasks]
    assert (stored["cells"], stored["seeds"]) == (cells, suite.seeds)


WRONG_VARY = {
    "sac has no flag 'critic_rate'; did you mean critic_lr": (
        "critic_lr = [1e-4",
        "critic_rate = [1e-4",
        ".critic_rate",
    ),
    "batch_size cannot differ between runs, only discount": (
        "tau = [0.005, 1]",
        "batch_size = [64, 128]",
        ".batch_size",
    ),
    "compile cannot differ between runs, only discount": ("tau = [0.005, 1]", "compile = [1, 0]", ".compile"),
    "is not set by flags": ("tau = [0.005, 1]", "total_steps = [10, 20]", ".total_steps"),
    "has no value": ("[0.005, 1]", "[]", ".tau"),
    "has 1 twice": ("[0.005, 1]", "[1, 1.0]", ".tau"),
    "must be dict[str, list[int | float]]": ("[0.005, 1]", '["a"]', "vary"),
    "[int | float]], got {'critic_lr': [0.0001, 0.001], 'tau': [True, 0.1]}": ("[0.005, 1]", "[true, 0.1]", "vary"),
    "tau must lie in (0, 1], got 2.0": ("[0.005, 1]", "[0.005, 2]", ".tau"),
    "takes finite numbers": ("[0.005, 1]", "[0.005, nan]", ".tau"),
    "names no hyperparameter": ("{ critic_lr = [1e-4, 1e-3], tau = [0.005, 1] }", "{}", "vary"),
    "algorithms.grid.flags.tau sets it too": ("1] }", "1] }\nflags = { tau = 0.01 }", ".tau"),
    "algorithms.grid.tasks.Hopper-v5.tau sets it too": ("1] }", "1] }\ntasks.Hopper-v5 = { tau = 0.01 }", ".tau"),
    "flags.tau sets it too": ("hidden = [8, 8]", "hidden = [8, 8]\ntau = 0.1", ".tau"),
}


@pytest.mark.parametrize("message", WRONG_VARY)
def test_wrong_values_of_hyperparameters_are_refused_in_one_sentence(tmp_path, message):
    old, new, key = WRONG_VARY[message]
    assert old in VARIED
    with pytest.raises(UserError) as error:
        suites.read(write(tmp_path, VARIED.replace(old, new)))
    said = str(error.value)
    assert message in said and "mine.toml: algorithms.grid." in said and key in said and "\n" not in said


@pytest.mark.parametrize("name", ["offline_model_based", "edge_of_reach", "edge_of_reach_mix"])
def test_suites_of_models_take_the_ensembles_that_the_suite_dynamics_trains(name):
    dynamics = suites.read(suites.find("dynamics"))
    (trainer,) = dynamics.entries
    seeds = f"seeds_{dynamics.seeds[0]}-{dynamics.seeds[-1]}"
    made = {
        task: str(Path("runs/dynamics") / seeds / task.replace("/", "-") / trainer.algorithm / "default")
        for task in dynamics.tasks
    }
    taken = 0
    for entry in suites.read(suites.find(name)).entries:
        for task, args in entry.args.items():
            if args.dynamics != "true":
                assert args.dynamics == f"{made[task]}/dynamics.safetensors"
                taken += 1
    assert taken
