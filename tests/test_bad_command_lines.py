"""Every script refuses bad command lines in one sentence, before it has written anything."""

import functools
import importlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import h5py
import numpy as np
import pytest
from offline_data import write_hdf5

from algos.arguments import MayVary, Range, flag, ranges
from algos.cli import cli, parsed
from algos.run import Run

SCRIPTS = sorted(path.stem for path in (Path(__file__).parents[1] / "single_file").glob("*.py"))
LONG, DIGITS = "x" * 400, "9" * 5_000
# tasks that scripts take, where that is not Pendulum-v1 or a file of data
TASKS = {"dqn": "CartPole-v1", "stream_q": "CartPole-v1", "stream_td": "seasons"}
TASKS |= dict.fromkeys(("sqirl", "gorp"), "tabular/gate-0.375")


class Begins(Exception):
    """A run would begin."""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The working directory, in which training never begins."""
    place = tmp_path / "work"
    place.mkdir()
    (tmp_path / "minari").mkdir()
    (place / "file").write_text("text")
    (place / "text.hdf5").write_text("text")
    (place / "loop").symlink_to("loop")
    (place / "folder.hdf5").mkdir()
    (place / "Pendulum-v1").write_text("a file where the folder of a task would be")
    write_hdf5(place / "data.hdf5", episodes=3)
    with h5py.File(place / "empty.hdf5", "w"):
        pass
    with h5py.File(place / "short.hdf5", "w") as file:
        for name, width in (("observations", 3), ("actions", 1), ("rewards", 0), ("terminals", 0), ("timeouts", 0)):
            file[name] = np.zeros((0, width) if width else 0, np.float32)

    def begin(*_: Any, **__: Any) -> None:
        raise Begins

    monkeypatch.chdir(place)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setattr(Run, "steps", begin)
    monkeypatch.setattr(Run, "phase", begin)
    return place


def snapshot() -> list[Path]:
    """Everything in the place of a test, but for the lock that Minari's folder has while it is read."""
    return [path for path in sorted(Path.cwd().parent.rglob("*")) if path.name != ".downloads.lock"]


def told(capsys, main: Callable[[Any], None], *words: str) -> str:
    """The sentence by which a script refuses its words, without having written anything."""
    before = snapshot()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["single_file/script.py", "--device=cpu", *words])
        with pytest.raises(SystemExit) as end:
            cli(main)
    said = capsys.readouterr()
    assert end.value.code == 2, words
    *warnings, last = said.err.splitlines()
    assert last.startswith("error: ") and all(line.startswith("warning: ") for line in warnings), said.err
    assert len(last) < 1_500
    assert snapshot() == before
    return last.removeprefix("error: ")


def main_of(script: str) -> Callable[[Any], None]:
    return importlib.import_module(script).main


def fields(script: str) -> dict[str, Any]:
    """The arguments of a script with their types."""
    return get_type_hints(get_type_hints(main_of(script))["args"], include_extras=True)


def task_of(script: str) -> list[str]:
    """Words that name a task which the script may take."""
    name = get_type_hints(main_of(script))["args"].TASK
    if name == "dataset":
        names = ("--expert-dataset=data.hdf5", "--expert-trajectories=1")
        expert = names if "expert_dataset" in fields(script) else ()
        return ["--dataset=data.hdf5", "--eval-episodes=0", *expert]
    return [f"{flag(name)}={TASKS.get(script, 'Pendulum-v1')}"]


def outside(bounds: Range, whole: bool) -> Iterator[str]:
    """Words that are no numbers of a range, each for a reason of its own."""
    yield from ("x", "nan", "inf", "-inf", "1e999", "", " ", "0x", "1,2", "--", DIGITS, str(bounds.low - 1))
    yield from [str(2**60)] if whole else []
    yield from [str(bounds.high * 2 + 1)] if bounds.high < math.inf else []
    yield from [f"{bounds.low:g}"] if bounds.above else []
    yield from [f"{bounds.high:g}"] if bounds.below else []


@functools.cache
def kinds() -> dict[tuple[Range, bool], list[tuple[str, str]]]:
    """The scripts' arguments of each range, which holds whole numbers or all: (script, name)."""
    found: dict[tuple[Range, bool], list[tuple[str, str]]] = {}
    for script in SCRIPTS:
        for name, hint in fields(script).items():
            for bounds in ranges(hint):
                found.setdefault((bounds, "int" in str(hint)), []).append((script, name))
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_words_that_are_no_numbers_of_their_range_are_refused(script, capsys):
    """Each argument gets some of the words, in turn, so that each kind of argument gets all of them."""
    for kind, alike in kinds().items():
        words = list(outside(*kind))
        for number, name in ((i, name) for i, (own, name) in enumerate(alike) if own == script):
            for word in words[number % len(words) :: len(alike)]:
                said = told(capsys, main_of(script), *task_of(script), f"{flag(name)}={word}")
                assert flag(name) in said, (name, word, said)


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_words_at_all_give_the_defaults(script, monkeypatch):
    main = main_of(script)
    monkeypatch.setattr("random.random", lambda: 1.0)  # see `told`
    monkeypatch.setattr(sys, "argv", ["single_file/script.py"])
    assert parsed(main) == get_type_hints(main)["args"]()


@pytest.mark.parametrize("script", SCRIPTS)
def test_values_that_vary_are_checked_like_others(script, capsys):
    """Each of the scripts gets a third of the words, in turn."""
    turn = SCRIPTS.index(script) % 3
    varied = [name for name, hint in fields(script).items() if any(isinstance(x, MayVary) for x in get_args(hint)[1:])]
    other = next(name for name in fields(script) if name not in varied)
    name = varied[SCRIPTS.index(script) % len(varied)]
    form = "--vary takes words such as"
    numbers, finite = f"--vary {name} takes numbers with commas", f"--vary {name} takes finite numbers"
    idle, must = f"--vary: {name} changes nothing", f"{flag(name)} must "
    wrong = {
        f"{name}=": form, name: form, "=1": form, LONG: form, f"{name}=x": (numbers, idle),
        f"{name}=nan,0.5": (finite, idle), f"{name}=0.5,0.5": (f"--vary {name} has the value 0.5 twice", idle),
        f"{name}=0.5,,1": (numbers, idle), f"{name}=-1e300,0.5": (must, idle), f"{name}=1e999": (finite, idle),
        f"{name}={','.join(map(str, range(1, 20_002)))}": (must, idle, "--vary makes 20,001 runs"),
        f"{other}=1,2": "--vary", "nothing=1,2": "--vary", f"é{name}=1": "--vary",
    }  # fmt: skip
    for word, start in [*wrong.items()][turn::3]:
        said = told(capsys, main_of(script), *task_of(script), "--vary", word)
        assert said.startswith(start) and ("--vary" in said or flag(name) in said), (word, said)
    word = f"{name}={getattr(get_type_hints(main_of(script))['args'](), name) or 0.5}"
    given = ([flag(name), "1"], [f"{flag(name)}=1"], [f"--{name}", "1"])[turn]
    said = told(capsys, main_of(script), *task_of(script), "--vary", word, *given)
    assert said == f"--vary {word}: {flag(name)} sets it too: keep one of them"


COMMON = [
    ("--vary", "--vary names no hyperparameter"),
    ("--vary --quiet", "--vary names no hyperparameter"),
    ("--seeds x", "--seeds takes whole numbers or a range"),
    ("--seeds 0:5:2", "--seeds takes whole numbers or a range"),
    ("--seeds 5:0", "--seeds names no seed"),
    ("--seeds 0 0", "--seeds must differ from each other"),
    ("--seeds 1.5", "--seeds takes whole numbers"),
    ("--seeds -1", "--seeds must not be negative"),
    ("--seeds=-1:2", "--seeds must not be negative"),
    (f"--seeds {2**63}", "--seeds must be below 2^63"),
    (f"--seeds {DIGITS}", "--seeds"),
    ("--seeds 0:99999999999999999999", "--seeds"),
    ("--seeds", "--seeds names no seed"),
    ("--seeds ''", "--seeds takes whole numbers"),
    ("--device tpu", "--device takes"),
    ("--device cuda:99", "--device"),
    ("--device cuda:-1", "--device"),
    ("--device cuda:x", "--device"),
    ("--device ''", "--device takes"),
    ("--device mps", "--device takes"),
    (f"--device {LONG}", "--device takes"),
    ("--variant ..", "--variant names a folder"),
    ("--variant ../x", "--variant names a folder"),
    ("--variant /tmp/x", "--variant names a folder"),
    ("--variant ''", "--variant names a folder"),
    ("--variant=-x", "--variant names a folder"),
    (f"--variant {LONG}", "--variant names a folder"),
    ("--variant a\tb", "--variant names a folder"),
    ("--out file", "--out: cannot use file"),
    ("--out file/x", "--out: cannot use file/x"),
    ("--out loop", "--out: cannot use loop"),
    (f"--out {LONG}", "--out: cannot use xxx"),
    ("--out /proc/x", "--out: "),
    ("--nothing", "Unrecognized options: --nothing"),
    ("nothing", "Unrecognized options: nothing"),
    ("--compile yes", "Unrecognized options: yes"),
    ("--no-nothing", "Unrecognized options"),
    ("--resume --compile x", "Unrecognized options: x"),
    ("--é", "Unrecognized options"),
    ("--stop-when-solved", "--stop-when-solved works for ids tabular/"),
]


@pytest.mark.parametrize(("line", "start"), COMMON, ids=[line[:30] for line, _ in COMMON])
def test_what_all_scripts_have_is_checked_in_all_of_them(line, start, capsys):
    words = ["" if word == "''" else word for word in line.split(" ")]
    turn = [line for line, _ in COMMON].index(line)
    for script in SCRIPTS[turn % 10 :: 10]:  # each of the scripts gets a tenth of the lines
        said = told(capsys, main_of(script), *task_of(script), *words)
        if not start.startswith("--out") or "cannot be read" not in said:
            assert said.startswith(start), said


ENV_IDS = [
    "", " ", "x", "Hopper", "Hopper-v", "Hopper-v99", "HalfCheetah-v2", "Hopper-v4x", "hopper-v5", "../Hopper-v5",
    "a/b/c", ":", ":Hopper-v5", "nothing:Hopper-v5", "os:Hopper-v5", "os.path:x", "a b:c-v0", "Hopper-v5 ",
    "Hopper-v5\n", "tabular/", "tabular/nothing", "tabular/chain-h0", "tabular/chain-h99999999999",
    "tabular/cart-pole-h40", "tabular/../x", "MinAtar/Nothing-v1", "dm_control/nothing-x-v0", "dm_control/",
    "ALE/Nothing-v5", "NothingNoFrameskip-v4", "FetchReach-v4", "PointMaze_Nothing-v3", "ogbench/x",
    "antmaze-nothing-v0", "visual-cube-single-v0", "visual-antmaze-medium-v0", "GymV21Environment-v0",
    "GymV26Environment-v0", "phys2d/CartPole-v0", "tabular/chain" + LONG, LONG, DIGITS, "é-v0", "\udcff-v0", "%s-v0",
    "-v5", "--v5", "0", "None", "Blackjack-v1", "CarRacing-v3", "LunarLander-v3",
]  # fmt: skip


@pytest.mark.parametrize("env_id", ENV_IDS, ids=[name[:20] for name in ENV_IDS])
def test_tasks_that_do_not_exist_or_do_not_fit_are_refused(env_id, capsys):
    for script in turns(env_id, ENV_IDS, ["sac", "dqn", "ppo", "sqirl", "stream_ac", "stream_q", "td3"]):
        try:
            said = told(capsys, main_of(script), f"--env-id={env_id}")
        except Begins:
            assert env_id in RIGHT.get(script, ())
            continue
        assert env_id not in RIGHT.get(script, ())
        assert env_id.strip()[:20] in said or "env-id" in said, said


def turns(case: str, cases: list[str], scripts: list[str]) -> list[str]:
    """Two of the scripts for each case, in turn."""
    number = cases.index(case)
    return [scripts[number % len(scripts)], scripts[(number + 2) % len(scripts)]]


# a module may be any that can be imported; the observations of Blackjack are three whole numbers, and its actions two
RIGHT = dict.fromkeys(("sac", "td3"), ("os:Hopper-v5",)) | dict.fromkeys(("dqn", "stream_q"), ("Blackjack-v1",))
RIGHT |= dict.fromkeys(("ppo", "stream_ac"), ("os:Hopper-v5", "Blackjack-v1"))

DATASETS = [
    "", " ", "x", "nothing.hdf5", "text.hdf5", "folder.hdf5", "empty.hdf5", "short.hdf5", "loop", "loop.hdf5",
    "hopper-medium", "hoper-medium-v2", "d4rl/nothing", "d4rl/", "minari/", "minari/x", "minari/x/y-v0", "local/",
    "local/nothing-v0", "local/../x-v0", "local/hopper-medium-v0", "ogbench/", "ogbench/nothing-v0", "../data.hdf5",
    "/nowhere/data.hdf5", "data.csv", "data.npz", "file", LONG, LONG + ".hdf5", "é.hdf5", "\udcff.hdf5", "a\nb.hdf5",
    ".hdf5", "..hdf5", "-x", "%s", "None", "0", "antmaze-umaze-v2",
]  # fmt: skip


@pytest.mark.parametrize("dataset", DATASETS, ids=[name[:20] for name in DATASETS])
def test_datasets_that_do_not_exist_or_cannot_be_read_are_refused(dataset, capsys):
    for script in turns(dataset, DATASETS, ["bc", "iql", "mopo", "recoil", "hiql"]):
        said = told(capsys, main_of(script), f"--dataset={dataset}")
        assert dataset.strip()[:8] in said or "dataset" in said, said


TOGETHER = [
    ("sac --env-id CartPole-v1", "--env-id: CartPole-v1 has Discrete actions"),
    ("sac --env-id Pendulum-v1 --hidden", "--hidden"),
    ("td3 --env-id MountainCar-v0", "--env-id: MountainCar-v0 has Discrete actions"),
    ("hiql --dataset d4rl/antmaze-medium-play-v2", "--dataset d4rl/antmaze-medium-play-v2: no environment of today"),
    ("dsac_t --env-id Pendulum-v1 --env-steps-per-update 20 --buffer-size 10", "--buffer-size must be at least"),
    ("dsac_t --env-id Taxi-v4", "--env-id: Taxi-v4 has Discrete actions"),
    ("dqn --env-id Pendulum-v1", "--env-id: Pendulum-v1 has Box actions"),
    ("dqn --env-id CartPole-v1 --levels -1 1", "--env-id: levels are for continuous actions"),
    ("dqn --env-id Pendulum-v1 --levels 0 2", "--levels must lie in [-1, 1]"),
    ("dqn --env-id Pendulum-v1 --levels 0", "--env-id: levels must be two or more"),
    ("dqn --env-id Pendulum-v1 --levels 0 0", "--env-id: levels must be two or more, differ"),
    ("dqn --env-id Humanoid-v5 --levels -1 0 1", "--env-id: 3 levels of each of 17 dimensions are 129,140,163 actions"),
    ("ppo --env-id Pendulum-v1 --horizon 3 --batch-size 64", "--batch-size must be at most 3"),
    ("ppo --env-id Pendulum-v1 --total-steps 3", "--total-steps must be at least 2048"),
    ("ppo --env-id Pendulum-v1 --bf16", "--bf16 rounds too much"),
    ("stream_ac --env-id Pendulum-v1 --bf16", "--bf16 is not for streaming methods"),
    ("stream_td --bf16", "--bf16 is not for streaming methods"),
    ("stream_td --env-option a=1", "--env-option is for environments, and a series has no options"),
    ("sac --env-id Pendulum-v1 --env-option g", "--env-option takes words such as frame_skip=5, got 'g'"),
    ("sac --env-id Pendulum-v1 --env-option g=1 g=2", "--env-option names g twice"),
    ("sac --env-id Pendulum-v1 --env-option h=1", "--env-option: Pendulum-v1 has no option h"),
    ("sac --env-id Pendulum-v1 --env-option threads=1", "--env-option: threads is no option that can be chosen"),
    ("sac --env-id Hopper-v5 --env-option reset_noise_scale=-1", "--env-option: high - low < 0"),
    ("sac --env-id CartPole-v1 --env-option sutton_barto_reward=true", "--env-id: CartPole-v1 has Discrete actions"),
    ("sac --env-id Hopper-v5 --env-option ctrl_cost_weight=abc", "--env-option: Hopper-v5 with these options cannot"),
    ("sqirl --env-id tabular/chain --env-option time=true", "--env-option time: another argument of this script sets"),
    ("ppo --env-id tabular/chain --env-option g=1", "--env-option: tabular/chain has no option g; it has previous_a"),
    (
        "stream_ac --env-id CartPole-v1 --env-option max_episode_steps=5",
        "--env-option max_episode_steps: use --max-episode-steps instead",
    ),
    ("bc --dataset data.hdf5 --env-option g=1", "Unrecognized options: --env-option"),
    ("trpo --env-id CartPole-v1", "--env-id: CartPole-v1 has Discrete actions"),
    ("mdpo_on_policy --env-id CartPole-v1", "--env-id: CartPole-v1 has Discrete actions"),
    ("mdpo_off_policy --env-id Pendulum-v1 --q 0.5", "--q must lie in [1, 2]"),
    ("mdpo_off_policy --env-id Pendulum-v1 --q 2.5", "--q must lie in [1, 2]"),
    ("sqirl --env-id CartPole-v1 --form table", "--form table needs a finite number of states"),
    ("sqirl --env-id CartPole-v1 --append-time", "--append-time works for ids tabular/"),
    ("sqirl --env-id tabular/gate-0.375 --k 100", "--k 100 is more than the"),
    ("sqirl --env-id tabular/gate-0.375 --vary k=1,2", "--vary"),
    ("sqirl --env-id Pendulum-v1", "--env-id: Pendulum-v1 has Box actions"),
    ("gorp --env-id tabular/gate-0.375 --k 9", "--k 9 is more than the"),
    ("gorp --env-id CartPole-v1 --k 60", "--k 60 --m 1 takes 2^60 x 1 episodes an iteration, and the most are"),
    ("gorp --env-id tabular/gate-0.375 --m 99999999999", "--k 1 --m 99999999999 takes 2^1 x 99,999,999,999 episodes"),
    ("stream_q --env-id Pendulum-v1", "--env-id: Pendulum-v1 has Box actions"),
    ("stream_ac --env-id MinAtar/Nothing-v1", "--env-id"),
    ("stream_td --env-id nothing.csv", "--env-id: cannot read nothing.csv: No such file"),
    ("stream_td --env-id file", "--env-id: 'file' is neither a series made here"),
    ("bc --dataset data.hdf5 --env-id CartPole-v1", "--dataset data.hdf5 has 1 numbers in its actions,"),
    ("iql --dataset data.hdf5 --env-id Hopper-v5", "--dataset data.hdf5 has 4 numbers in its obs"),
    ("iql --dataset data.hdf5 --env-id Hoper-v5", "--env-id: Gymnasium has no environment"),
    ("mopo --dataset data.hdf5 --eval-episodes 0 --rollout-length 0", "--rollout-length must lie in [1, 10000]"),
    ("mopo --dataset data.hdf5 --eval-episodes 0 --real-ratio 2", "--real-ratio must lie in [0, 1]"),
    ("mopo --dataset data.hdf5 --eval-episodes 0 --never-terminates --dynamics nowhere", "--dynamics"),
    ("mopo --dataset data.hdf5 --eval-episodes 0 --never-terminates --dynamics file", "--dynamics"),
    ("mopo --dataset data.hdf5 --eval-episodes 0 --elites 9", "--elites"),
    ("mobile --dataset data.hdf5 --eval-episodes 0 --model-mix 2", "--model-mix"),
    ("ravl --dataset data.hdf5 --eval-episodes 0 --critics 1", "--critics"),
    ("recoil --dataset data.hdf5 --eval-episodes 0 --expert-dataset no.hdf5", "--expert-dataset: there is no file no"),
    ("gcbc --dataset data.hdf5 --eval-episodes 0 --augment 2", "--augment must lie in"),
    ("gcbc --dataset data.hdf5 --eval-episodes 0 --clusters 0 --augment 0.5", "--clusters must"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "start"), TOGETHER, ids=[line[:40] for line, _ in TOGETHER])
def test_arguments_that_do_not_fit_together_are_refused(line, start, capsys):
    script, *words = line.split(" ")
    assert told(capsys, main_of(script), *words).startswith(start)
