"""The examples of README that use an agent in one's own code run as they stand."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from offline_data import write_hdf5
from scripts import SCRIPTS

from algos.cli import run_command
from algos.policy import load_policy
from benchmarks import index, suite
from benchmarks.plan import plan

README = (Path(__file__).parents[1] / "README.md").read_text()
LINES = " ".join(README.split())
EXAMPLES = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "from single_file" in code]
ALONE = [code for code in EXAMPLES if "robot" not in code]


@pytest.mark.parametrize("number", range(3))
def test_an_agent_stands_alone_as_readme_says(number):
    names: dict = {}
    exec(compile(ALONE[number], "README.md", "exec"), names)
    agent = names["agent"]
    assert agent.runs == 3 and all(t.isfinite().all() for t in agent.state_dict().values())
    action = names["action"] if number == 0 else names["actions"]
    assert isinstance(action, torch.Tensor) and action.shape[0] == 3
    assert (getattr(agent, "adam", None) or agent.actor_adam).steps > 10


def test_policies_act_as_readme_says(train, bare_runs, monkeypatch, tmp_path):
    folder = train("sac", env_id="Hopper-v5", seeds=("0:4",), total_steps=8, eval_every=8, eval_episodes=1).folder
    codes = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "policy.safetensors" in code]
    loading = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "load_policy(" in code]
    assert len(codes) == len(loading) == 1
    names: dict = {"obs": np.random.default_rng(0).normal(size=11)}
    for code in (*loading, *codes):
        exec(compile(code.replace("runs/Hopper-v5/sac/default", str(folder)), "README.md", "exec"), names)
    assert names["action"].shape == (3,) and np.abs(names["action"]).max() > 1e-3
    np.testing.assert_allclose(names["act"](names["obs"]), names["action"], atol=1e-5)


def words_of(node: ast.AST) -> set[str]:
    """Names and texts in code, but for docstrings."""
    texts = {id(part.value) for part in ast.walk(node) if isinstance(part, ast.Expr)}
    parts = [part for part in ast.walk(node) if id(part) not in texts]
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    return names | {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def used_by_comparisons(source: str) -> set[str]:
    """The words in tests that take the fixture `float64`, in their parameters, and in what these name in the file."""
    defined: dict[str, set[str]] = {}
    waiting: set[str] = set()
    for node in ast.parse(source).body:
        words = words_of(node)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = words
            if isinstance(node, ast.FunctionDef) and "float64" in [arg.arg for arg in node.args.args]:
                waiting |= words
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {name.id: words for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    used: set[str] = set()
    while waiting:
        used |= (word := {waiting.pop()})
        waiting |= set().union(*(defined.get(name, set()) for name in word)) - used
    return used


def test_the_scripts_whose_updates_are_compared_with_official_code_are_those_that_readme_names():
    tests = [path.read_text() for path in (Path(__file__).parent / "single_file").glob("test_*_updates.py")]
    compared = {script.split()[0] for script in SCRIPTS} & set().union(*map(used_by_comparisons, tests))
    (told,) = re.findall("from the same weights, batches and noise, updates of (.*?) are those of their off", LINES)
    assert set(re.findall("`([a-z_0-9]+)`", told)) == compared


@pytest.mark.skipif(importlib.util.find_spec("onnxscript") is None, reason="needs the extra onnx")
def test_an_exported_policy_acts_as_readme_says(train, bare_runs, monkeypatch, tmp_path):
    folder = train("sac", env_id="Hopper-v5", total_steps=8, eval_every=8, eval_episodes=1).folder
    monkeypatch.chdir(tmp_path)
    (line,) = re.findall(r"python -m (benchmarks\.export .*)", README)
    words = line.replace("runs/Hopper-v5/sac/default", str(folder)).split()
    monkeypatch.setattr("sys.argv", words)
    run_command(importlib.import_module(words[0]).main)
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "onnxruntime" in code]
    names: dict = {"obs": np.random.default_rng(0).normal(size=11)}
    exec(compile(code, "README.md", "exec"), names)
    wanted = load_policy(folder)(names["obs"])
    assert names["action"].shape == (1, 3) and np.abs(wanted).max() > 1e-3
    np.testing.assert_allclose(names["action"][0], wanted, atol=1e-5)


def test_scripts_are_modules_wherever_python_starts(tmp_path):
    code = "import importlib.util; assert importlib.util.find_spec('single_file.sac')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_the_job_array_has_all_jobs_of_its_suite(tmp_path):
    last, name = re.search(r"--array=0-(\d+) [^$]*\.sweep (\w+) --device cuda --threads 8 --job", README).groups()
    ten = suite.read(suite.ROOT / "benchmarks" / "suites" / f"{name}.toml")
    assert len(plan(ten, tmp_path, len(ten.seeds), "cuda", {})) == int(last) + 1  # all seeds of a cell share a GPU


def test_the_suite_in_readme_is_one(tmp_path, monkeypatch):
    """With a script that there is in the place of one's own."""
    (text,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    write_hdf5(tmp_path / "mine.hdf5")
    monkeypatch.chdir(tmp_path)
    text = text.replace("algorithms.my_method", "algorithms.bc").replace("my_package.tasks:Walk-v0", "Hopper-v5")
    (path := tmp_path / "mine.toml").write_text(text)
    read = suite.read(path)
    assert [entry.name for entry in read.entries] == ["iql", "bc"] and len(read.seeds) == 10
    (args,) = read.entries[0].args.values()
    assert args.env_id == "Hopper-v5" and args.reward == "none" and args.total_steps == 100_000
    assert args.vary == ("temperature=1.0,3.0",)


def test_examples_are_short():
    assert len(ALONE) == 3
    for code in ALONE:
        lines = [line for line in code.splitlines() if line and not re.match(r"import|from", line)]
        assert len(lines) <= 12


def test_findings_have_the_lengths_of_stored_runs():
    results = suite.ROOT / "results"
    text = (results / "findings.md").read_text()
    assert index.with_lengths(text, results) == text and len(index.FINDING.findall(text)) == text.count("\n### ") > 20
    wrong = text.replace("*50,000 gradient updates, 5 seeds*", "*60,000 steps, 4 seeds*")
    assert wrong != text == index.with_lengths(wrong, results)


def test_findings_name_every_report_and_study():
    results = suite.ROOT / "results"
    links = set(re.findall(r"\]\(([^)]*)\)", (results / "findings.md").read_text()))
    assert all((results / link).exists() for link in links)
    named = {link.partition("/")[0] for link in links}
    without = {"smoke", "pendulum", "stream_check", "throughput"}  # checks and measurements, which compare no methods
    assert {path.name for path in results.iterdir() if path.is_dir()} - named == without


def test_the_page_on_all_results_is_that_of_the_stored_ones():
    results = suite.ROOT / "results"
    assert index.contents(results) == (results / "README.md").read_text()


def test_the_table_of_algorithms_knows_of_stored_results():
    stored = set()
    for path in (suite.ROOT / "results").glob("*/sources.json"):
        stored |= {run["algorithm"] for run in json.loads(path.read_text())}
    rows = re.findall(r"\| \[`(\w+)`\]\(single_file/.*\| (.*?) \|\n", README)
    without = {script for script, results in rows if results == "none yet"}
    assert len(rows) == len(list((suite.ROOT / "single_file").glob("[!_]*.py"))) and not without & stored
    assert all((suite.ROOT / link).exists() for _, results in rows for link in re.findall(r"\((.*?)\)", results))


def test_make_installs_the_extras_that_readme_says():
    """It installs `dev`, which repeats the packages of others."""
    extras = tomllib.loads((suite.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = {extra: {re.split("[><=;]", line)[0].strip() for line in lines} for extra, lines in extras.items()}
    apart = {extra for extra, own in packages.items() if not own <= packages["dev"]}
    assert "`make` installs all extras that are named below but `atari`, `dm_control` and `peers`." in README
    assert apart == {"atari", "dm_control", "peers"}
