"""Every command refuses bad arguments, missing inputs and folders that it cannot write to, in one sentence."""

import errno
import importlib
import math
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pandas as pd
import pytest
import sac
import synthetic
from offline_data import write_hdf5

from algos.arguments import flag, ranges
from algos.cli import report_errors, run_command
from algos.folders import writable
from benchmarks.suite import BENCHMARKS, ROOT

COMMANDS = [path.stem for path in sorted(BENCHMARKS.glob("*.py")) if "    run_command(main)\n" in path.read_text()]
LONG, DIGITS = "x" * 400, "9" * 5_000
# words with which a command would begin its work, unless other words are wrong
GOOD = {
    "collect": ["maze2d-umaze-v0"], "d3rlpy_peer": ["iql", "--dataset", "data.hdf5"], "dataset": ["data.hdf5"],
    "dsac_peer": ["--code", "empty"], "dual_peer": ["f_dvl", "--code", "empty"],
    "budget": ["trained", "--out", "out"], "coverage": ["short", "--out", "out"],
    "edge_of_reach": ["short"], "ensembles": ["short", "--out", "out"], "evaluate": ["trained"],
    "export": ["trained", "--onnx", "p.onnx"],
    "watch": ["trained"], "effective_horizon": ["short", "--out", "out"], "horizon": ["chain"], "index": [],
    "leaderboard": [str(ROOT / "results"), "--out", "out"],
    "more_data": ["short", "--out", "out"], "offlinerl_kit": ["--code", "empty"],
    "ogbench_peer": ["hiql", "--code", "empty"],
    "peer_speed": ["plain", "--algorithm", "edac"], "pendulum_check": ["short"],
    "policies": ["run", "--name", "hopper-medium"], "random_policy": [], "sb3": ["sac", "--env-id", "Pendulum-v1"],
    "report": ["short", "--out", "out"], "sweep": ["mine.toml", "--device", "cpu"],
    "stream_peer": ["ac", "--code", "empty"], "throughput": ["envs", "--env-ids", "Pendulum-v1"],
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a short run."""
    out = tmp_path_factory.mktemp("trained")
    args = {"env_id": "InvertedPendulum-v5", "total_steps": 4, "eval_every": 4, "eval_episodes": 1, "hidden": (4,)}
    sac.main(sac.Args(**args, seeds=("0", "1"), out=out, quiet=True, device="cpu"))
    return out / "InvertedPendulum-v5" / "sac" / "default"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch, trained):
    """The working directory: good inputs and bad ones."""
    place = tmp_path / "work"
    for folder in ("../minari", "empty", "numbers", "deep", "folder.mp4", "run/checkpoint", "code/offlinerlkit"):
        (place / folder).mkdir(parents=True)
    (place / "file").write_text("text")
    (place / "text.npz").write_text("text")
    (place / "numbers" / "envs.json").write_text("[1, 2]")
    (place / "deep" / "envs.json").write_text("[" * 100_000)
    (place / "run" / "config.json").write_text("null")
    (place / "loop").symlink_to("loop")
    write_hdf5(place / "data.hdf5", episodes=3)
    np.savez(place / "half.npz", next_state=np.zeros((2, 2, 1)))
    np.savez(place / "bridge.npz", transitions=np.zeros((2, 2), int), rewards=np.zeros((2, 2)))
    suite = ['purpose = "p"', 'tasks = ["Pendulum-v1"]', 'seeds = "0"', "total_steps = 10", "eval_every = 10"]
    (place / "mine.toml").write_text("\n".join([*suite, "eval_episodes = 1", "[algorithms.sac]"]))
    columns = "task,algorithm,score,spread,seeds,protocol,source\n"
    (place / "words.csv").write_text(f"{columns}Hopper-v2,sac,x,1,1,a,b\n")
    (place / "unknown.csv").write_text(f"{columns}Hoper-v2,sac,1,1,1,a,b\n")
    (place / "nameless.csv").write_text(f"{columns},sac,1,1,1,a,b\n")
    curve = pd.DataFrame([(0, 0, 0, 1.0), (0, 10, 0, 1.0)], columns=["seed", "step", "episode", "return"])
    synthetic.store(place / "short", "dsac_t", curve, "Pendulum-v1")
    shutil.copytree(trained, place / "trained")
    monkeypatch.chdir(place)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return place


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """All files below a folder with their contents, and all folders."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def sentence(capsys, name: str, *words: str) -> str:
    """What `python -m benchmarks.NAME WORDS` says as it refuses its words; it has exit code 2 and writes nothing."""
    before = snapshot(Path.cwd().parent)
    main = importlib.import_module(f"benchmarks.{name}").main
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"benchmarks/{name}.py", *words])
        with pytest.raises(SystemExit) as end:
            run_command(main)
    said = capsys.readouterr()
    assert end.value.code == 2 and said.err.startswith("error: ") and said.err.count("\n") == 1, said.err
    assert len(said.err) < 1_500 and "Traceback" not in said.err
    assert snapshot(Path.cwd().parent) == before
    return said.err.removeprefix("error: ")


def numbers(name: str) -> Iterator[tuple[str, str]]:
    """Each flag of a command that takes a number, with words that are no number of its range."""
    for field, hint in get_type_hints(importlib.import_module(f"benchmarks.{name}").Args, include_extras=True).items():
        for bounds in ranges(hint):
            words = ["x", "nan", "inf", "", DIGITS, str(bounds.low - 1)]
            words += [str(bounds.high * 2)] if bounds.high < math.inf else [str(2**60)]
            yield from ((flag(field), word) for word in words)


def test_there_is_a_good_command_line_of_each_command():
    assert set(COMMANDS) == set(GOOD) and len(COMMANDS) > 10


@pytest.mark.parametrize("name", COMMANDS)
def test_all_numbers_of_a_command_have_ranges(name):
    args = importlib.import_module(f"benchmarks.{name}").Args
    kinds = get_type_hints(args)
    for field, hint in get_type_hints(args, include_extras=True).items():
        assert ranges(hint) or not any(word in str(kinds[field]) for word in ("int", "float")), field


@pytest.mark.parametrize("name", COMMANDS)
def test_words_that_are_no_numbers_of_their_range_are_refused(name, capsys):
    for given, word in numbers(name):
        said = sentence(capsys, name, *GOOD[name], f"{given}={word}")
        assert given in said, (word, said)


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_that_do_not_exist_are_refused(name, capsys):
    for words in (["--nothing"], ["--out"], ["--", "--x"], ["--a\nb"], ["--é"], ["--\udcff"], [f"--{LONG}"]):
        said = sentence(capsys, name, *GOOD[name], *words)
        assert words != ["--nothing"] or said.startswith("Unrecognized options: --nothing")


# words and the beginning of the sentence that refuses them
WRONG = [
    ("collect nothing", "there is no recipe 'nothing'; "),
    ("collect local/", "there is no recipe 'local/'"),
    ("collect ../maze2d-umaze-v0", "there is no recipe"),
    ("collect maze2d-umaze-v0 --npz copies", "--npz: only recipes of OGBench's"),
    ("collect hopper-medium-replay-v0 --seed 3 --d4rl new/copies", "--seed: hopper-medium-replay-v0 is the data of"),
    ("collect maze2d-umaze-v0 --d4rl file/x", "--d4rl: cannot write to file/x: Not a directory"),
    ("collect pointmaze-medium-navigate-v0 --npz file", "--npz: cannot write to file: File exists"),
    (f"collect maze2d-umaze-v0 --d4rl {LONG}", "cannot use xxx"),
    ("dataset nothing", "--dataset takes d4rl/…, minari/…"),
    ("dataset missing.hdf5", "--dataset: there is no file missing.hdf5"),
    ("dataset minari/../../x-v0", "--dataset: 'minari/../../x-v0' is no dataset's name"),
    ("dataset ogbench/../x-v0", "--dataset: 'ogbench/../x-v0' is no dataset's name"),
    ("dataset local/a\0b-v0", "--dataset: 'local/a\\x00b-v0' is no dataset's name"),
    ("dataset local/", "--dataset takes d4rl/…, minari/…"),
    ("dataset ogbench//x-v0", "--dataset: 'ogbench//x-v0' is no dataset's name"),
    ("dataset minari/x", "--dataset: minari/x has no version"),
    ("dataset local/nothing-v0", "--dataset: local/nothing-v0 is not in"),
    ("dataset d4rl/hoper-medium-v2", "--dataset: "),
    ("dataset text.npz", "--dataset text.npz cannot be read"),
    ("dataset local/maze2d-umaze-v0 --exact-d4rl", "--exact-d4rl is for files of D4RL's layout"),
    ("dataset data.hdf5 --out file", "--out: cannot write to file: File exists"),
    ("dataset data.hdf5 --out new/file/../../file/x", "--out: cannot write to"),
    ("dataset data.hdf5 --out loop", "--out: cannot write to loop"),
    (f"dataset data.hdf5 --out new/{LONG}/x", "--out: cannot write to new/xxx"),
    (f"dataset {LONG}.hdf5", "--dataset: there is no file xxx"),
    ("budget empty --out new", "no run in empty"),
    ("budget --out new", "name at least one folder of runs"),
    ("budget trained --out file", "--out: cannot use file: file is not a folder that can be written to"),
    ("coverage short --out new", "dsac_t on Pendulum-v1, 10 steps: there are 1 seeds, and 50 are needed"),
    ("coverage nowhere --out new", "there is no folder nowhere"),
    ("coverage --out new", "name at least one folder of runs"),
    (
        "report short --out new --curves x",
        "--curves takes sac_simba_v2, td3_authors, ppo_tianshou, sac_tianshou, td3_tianshou, got 'x'",
    ),
    ("sweep mine.toml --until-decided sac", "--until-decided takes the names of two algorithms"),
    ("sweep mine.toml --until-decided sac td3", "--until-decided: mine has no algorithm 'td3'; it has sac"),
    ("export trained --seed 9 --onnx new/p.onnx", "--seed: trained has no seed 9; it has"),
    ("evaluate trained --seeds 9", "--seeds: trained has no seed 9; it has"),
    ("evaluate nowhere", "nowhere is no run's folder"),
    ("evaluate run", "run has no policy.safetensors: "),
    ("evaluate short", "short is no run's folder"),
    ("evaluate trained --env-id Hopper-v5", "--env-id Hopper-v5 has 11 numbers in an observation"),
    (
        "evaluate trained --env-id CartPole-v1",
        "--env-id CartPole-v1 has discrete actions, and the policies were mad",
    ),
    ("evaluate trained --env-id Hoper-v5", "--env-id: Gymnasium has no environment"),
    ("evaluate trained --seeds 7", "--seeds: trained has no seed 7; it has 0, 1"),
    ("evaluate trained --seeds middle", "--seeds takes best, median, worst, whole numbers"),
    ("evaluate trained --seeds 0:20000", "--seeds takes at most 10,000 seeds, which one process trains at once, and"),
    ("evaluate trained --env-option nothing", "--env-option takes words such as frame_skip=5"),
    ("evaluate trained --env-option a=1 a=2", "--env-option names a twice"),
    (
        "evaluate trained --env-option xml_file=no.xml",
        "--env-option xml_file=no.xml is no model that MuJoCo can read (O",
    ),
    (
        "watch trained --env-option xml_file=./file",
        "--env-option xml_file=./file is no model that MuJoCo can read (Val",
    ),
    ("evaluate trained --env-option xml_file=3", "--env-option xml_file=3 is no model that MuJoCo can read (OSErr"),
    ("evaluate trained --env-option num_envs=3", "--env-option: num_envs is no option that can be chosen"),
    ("evaluate trained --setting x", "--setting takes words such as tau=0.01, got 'x'"),
    ("watch trained --setting x", "--setting takes words such as tau=0.01, got 'x'"),
    ("evaluate empty/policy.safetensors", "empty is no run's folder"),
    ("evaluate trained --env-option nothing=1", "--env-option: InvertedPendulum-v5 has no option nothing"),
    ("evaluate trained --env-id Pendulum-v1 --env-option gg=1", "--env-option: Pendulum-v1 has no option gg"),
    ("evaluate trained --out file", "--out: cannot write to file: File exists"),
    ("watch nowhere", "nowhere is no run's folder"),
    ("watch trained --out a.gif", "--out must end in .mp4, got a.gif"),
    ("watch trained --out file/a.mp4", "--out: cannot use file: file is not a folder that can be written to"),
    (f"watch trained --out {'a' * 300}.mp4", "--out: cannot use " + "a" * 300 + ".mp4: File name too long"),
    (f"watch trained --out {'a' * 248}.mp4", "--out: cannot use " + "a" * 248 + ".mp4.part: File name too long"),
    ("watch trained --out folder.mp4", "--out: folder.mp4 is a folder"),
    (f"export trained --onnx {'a' * 300}.onnx", "--onnx: cannot use " + "a" * 300 + ".onnx: File name too long"),
    ("watch trained --task task1", "--task: InvertedPendulum-v5 has no task 'task1'; it has none"),
    ("watch trained --human", "--human needs a display"),
    ("watch trained --env-id tabular/chain", "tabular/chain is a table, which has no picture"),
    ("export nowhere --onnx p.onnx", "nowhere is no run's folder"),
    ("export trained --onnx p.txt", "--onnx must end in .onnx, got p.txt"),
    ("export trained --onnx file/p.onnx", "--onnx: cannot use file: file is not a folder that can be written to"),
    ("export trained --onnx p.onnx --seed 0:2", "--seed names 2 runs"),
    ("horizon nothing", "there is no table 'nothing'; "),
    ("horizon chain-h0", "table 'chain-h0': an episode has 1 to 10,000 decisions, not 0"),
    ("horizon chain-h99999999999", "table 'chain-h99999999999'"),
    ("horizon", "name at least one table"),
    ("horizon --all-of é", "--all-of é: no table has a name"),
    ("horizon text.npz", "text.npz is no .npz file of arrays"),
    ("horizon half.npz", "half.npz has neither the arrays of this project"),
    ("horizon bridge.npz", "bridge.npz has a table that cannot be used: BRIDGE's files"),
    ("horizon chain --horizon 3", "--horizon is for .npz files"),
    ("horizon chain cart-pole-h20 --out new", "the tree of cart-pole-h20 has up to"),
    ("horizon chain --out file", "--out: cannot write to file: File exists"),
    ("horizon data.hdf5", "there is no table 'data.hdf5'"),
    ("index --folder empty", "there is no report in empty"),
    ("index --folder nowhere", "there is no report in nowhere"),
    ("index --folder file", "there is no report in file"),
    ("pendulum_check short", "the run of seed 0 ends before update 7,000"),
    ("pendulum_check nowhere", "there is no folder nowhere"),
    ("pendulum_check empty", "no run that has learned and been evaluated in empty"),
    ("more_data short --out new", "dsac_t on Pendulum-v1 is no run of sqirl.py"),
    ("more_data empty --out new", "no run that has learned and been evaluated in empty"),
    ("more_data --out new", "name at least one folder of runs"),
    ("edge_of_reach short", "no run has logged the value of its policy"),
    ("edge_of_reach nowhere", "there is no folder nowhere"),
    ("ensembles short --out new", "there is no finished ensemble (dynamics.csv) in short"),
    ("ensembles --out new", "name at least one folder of ensembles"),
    ("effective_horizon short --out new", "Pendulum-v1 is no table"),
    ("effective_horizon nowhere --out new", "there is no folder nowhere"),
    ("peer_speed torch", "invalid choice 'torch'"),
    ("peer_speed plain", "--algorithm of plain takes edac, ensemble, got sac"),
    ("peer_speed stored --algorithm edac", "--algorithm of stored takes sac, mopo, got edac"),
    ("peer_speed offlinerl_kit", "--code takes the folder of a clone of OfflineRL-Kit, with offlinerlkit in it, got N"),
    ("peer_speed plain --algorithm edac --device tpu", "--device takes auto, cpu, cuda or cuda:N"),
    ("peer_speed sbx --algorithm ppo", "--algorithm of sbx takes sac"),
    ("peer_speed d3rlpy", "d3rlpy "),
    ("policies run --name hopper", "--name must be a task and a quality, such as hopper-medium"),
    ("policies run --name ../hopper-medium", "--name must be a task and a quality"),
    ("policies run --name hopper-medium", "run/config.json is damaged"),
    ("policies nowhere --name hopper-medium", "there is no run in nowhere"),
    ("policies file --name hopper-medium", "there is no run in file"),
    ("policies short --name hopper-expert --step 9999999999999", "there is no run in short"),
    ("random_policy --published nowhere.csv", "cannot read nowhere.csv"),
    ("random_policy --published empty", "cannot read empty"),
    ("random_policy --published data.hdf5", "cannot read data.hdf5"),
    ("random_policy --published mine.toml", "mine.toml has no column 'task'; it needs task, algorithm"),
    ("random_policy --published words.csv", "words.csv: score must hold numbers only"),
    ("random_policy --published unknown.csv", "--env-id: Gymnasium has no environment 'Hoper-v5'"),
    ("random_policy --published nameless.csv", "nameless.csv: task must hold words only"),
    ("random_policy --out file/x.csv", "--out: cannot write to file: File exists"),
    ("report --out new", "name at least one folder of runs"),
    ("report short", "Missing from"),
    ("report nowhere --out new", "there is no folder nowhere"),
    ("report file --out new", "there is no folder file"),
    ("report short --out file", "--out: cannot write to file: File exists"),
    ("report short --out new --references nothing", "--references: there is no table 'nothing'"),
    (f"report short --out new --references {LONG}", "--references: there is no table 'xxx"),
    ("report short --out new --published words.csv", "words.csv: score must hold numbers only"),
    ("report short --out new --published nowhere.csv", "--published: there is no table 'nowhere.csv'"),
    ("report short --out new --tasks Hopper-v5", "--tasks: no run is named 'Hopper-v5'; there are Pendulum-v1"),
    ("report short --out new --algorithms sac", "--algorithms: no run is named 'sac'; there are dsac_t"),
    ("report short --out new --score best of three", "Unrecognized options: of, three"),
    ("report short --out new --formats bmp", "invalid choice 'bmp'"),
    ("sb3 a2c", "invalid choice 'a2c'"),
    ("sb3 sac --env-id CartPole-v1", "CartPole-v1 has Discrete actions"),
    ("sb3 sac --env-id Hoper-v5", "--env-id: Gymnasium has no environment"),
    ("sb3 trpo --learning-starts 9", "--learning-starts is for sac, td3 and dqn: trpo has no random start"),
    ("sb3 sac --seeds 0 0", "--seeds must differ from each other"),
    ("sb3 sac --seeds -1", "--seeds must not be negative"),
    ("d3rlpy_peer iql --seeds x", "--seeds takes whole numbers"),
    ("d3rlpy_peer td3_bc --dataset nothing", ""),
    ("offlinerl_kit --code empty", "--code takes the folder of a clone of OfflineRL-Kit, with offlinerlkit in it"),
    ("offlinerl_kit --code empty --total-steps 1500", "--total-steps must be a multiple of 1,000, got 1,500"),
    ("offlinerl_kit --code empty --seeds 0 0", "--seeds must differ from each other"),
    ("offlinerl_kit", "Missing from python -m benchmarks.offlinerl_kit: --code PATH"),
    ("offlinerl_kit --code code --dataset local/ant-medium-v0", "--dataset takes data of halfcheetah-medium, hopper"),
    (
        "ogbench_peer hiql --code empty",
        "--code empty has no folder agents: give the folder impls of a clone of OGBench",
    ),
    ("dsac_peer --code empty", "--code empty has no dsac_v2.py: give a clone of DSAC-v2"),
    ("dsac_peer --code empty --env-id CartPole-v1", "CartPole-v1 has Discrete actions, where continuous ones are"),
    ("stream_peer ac --code empty", "--code empty has no stream_ac_continuous.py: give a clone of streaming-drl"),
    ("stream_peer q --code empty --env-id CartPole-v1", "--code empty has no stream_q.py: give a clone of"),
    ("stream_peer q --code empty", "HalfCheetah-v5 has Box actions, where discrete ones are needed"),
    ("stream_peer ac --code empty --seeds 0 0", "--seeds must differ from each other"),
    ("ogbench_peer ota --code empty", "invalid choice 'ota'"),
    ("ogbench_peer hiql --code empty --dataset local/antmaze-medium-navigate-v0", "--dataset takes data of pointmaze"),
    ("sweep nothing", "there is no suite 'nothing'"),
    ("sweep empty", "there is no suite 'empty'"),
    ("sweep data.hdf5", "data.hdf5: "),
    (f"sweep {LONG}", "there is no suite 'xxx"),
    ("sweep mine.toml --device tpu", "--device takes"),
    ("sweep mine.toml --max-seeds 30", "--max-seeds is for --until-decided only"),
    ("sweep mine.toml --seeds-per-look 5 --dry-run", "--seeds-per-look is for --until-decided only"),
    ("sweep mine.toml --device cuda:99", "--device cuda:99: this machine"),
    ("sweep mine.toml --job 7 --out new", "--job takes 0 to 0"),
    ("sweep mine.toml --out file", "--out: cannot use /"),
    ("sweep mine.toml --out file --job 0", "--out: cannot use /"),
    (f"sweep mine.toml --out new/{LONG}", "--out: cannot write to"),
    ("sweep mine.toml --engine slurm", "invalid choice 'slurm'"),
    ("throughput nothing", "invalid choice 'nothing'"),
    ("throughput scripts --env-id Hoper-v5", "--env-id: Gymnasium has no environment"),
    ("throughput scripts --env-id CartPole-v1 --out new", "CartPole-v1 has Discrete actions"),
    ("throughput scripts --device tpu", "--device takes"),
    ("throughput scripts --out file", "--out: cannot write to file: File exists"),
    ("throughput envs --env-ids", "--env-ids"),
    ("throughput envs --env-ids Hopper-v5 CartPole-v1 --out new", "CartPole-v1 has Discrete actions"),
    ("throughput envs --env-ids Hopper-v2", "--env-ids: Hopper-v2 is no longer part"),
    ("throughput goal_conditioned --ogbench empty", "--ogbench takes the folder impls"),
    ("throughput goal_conditioned --ogbench-python python", "--ogbench-python runs the code of --ogbench"),
    ("throughput streams --beside 1", "--beside is for scripts only"),
    ("throughput streams --stream-seeds", "--stream-seeds takes at least one number"),
    ("throughput tables --out empty", "--out: there is no measurement in empty"),
    ("throughput tables --out numbers", "--out: numbers/envs.json holds no measurement"),
    ("throughput tables --out deep", "--out: deep/envs.json holds no measurement"),
    ("throughput tables --out file", "--out: there is no measurement in file"),
]


@pytest.mark.parametrize(("line", "beginning"), WRONG, ids=[line[:50] for line, _ in WRONG])
def test_a_command_line_is_refused_in_a_sentence(line, beginning, capsys, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    for module in ("throughput", "collect", "dataset", "sb3", "random_policy"):  # no work begins
        for work in ("measure_scripts", "measure_envs", "make", "figure", "make_model", "random_return"):
            monkeypatch.setattr(f"benchmarks.{module}.{work}", None, raising=False)
    name, *words = line.split(" ")
    assert sentence(capsys, name, *words).startswith(beginning)


def test_a_folder_that_cannot_be_made_leaves_no_part_of_its_path(tmp_path, monkeypatch):
    for bad in (Path("new", "a" * 300, "x"), Path("new", "a", "a" * 300), Path("file", "x"), Path("file")):
        with pytest.raises(Exception, match="--d4rl: cannot write to"):
            writable(bad, "--d4rl")
        assert not Path("new").exists()
    assert writable(Path("new", "a")).is_dir() and not list(Path("new", "a").iterdir())

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(Exception, match=r"^--out: cannot write to other: No space left on device$"):
        writable(Path("other"))
    assert not Path("other").exists()
    with pytest.raises(Exception, match="No space left"):
        writable(Path("new", "a"))
    assert Path("new", "a").is_dir()  # it was there before


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: No space left on device\n"),
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), 2, "error: cannot use a/b: Permission denied\n"),
        (OSError("Unable to\nopen"), 2, "error: Unable to open\n"),
        (OSError(), 2, "error: OSError\n"),
        (MemoryError(), 2, "error: there is not enough memory for this; take fewer seeds or smaller sizes ("),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
    ],
)
def test_errors_of_the_system_are_one_sentence(error, code, said, capsys, monkeypatch):
    def fail():
        raise error

    monkeypatch.setattr("os.dup2", lambda *_: None)
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    with pytest.raises(SystemExit) as end:
        report_errors(fail)
    assert end.value.code == code and capsys.readouterr().err.startswith(said)


def test_ctrl_c_ends_a_command_with_130(capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.throughput.measure_envs", lambda args: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(sys, "argv", ["throughput", "envs", "--env-ids", "Pendulum-v1"])
    with pytest.raises(SystemExit) as end:
        run_command(importlib.import_module("benchmarks.throughput").main)
    assert end.value.code == 130 and capsys.readouterr().err == "interrupted\n"
