"""Suites of any content are refused in one sentence that names the file, before anything starts."""

import sys
from pathlib import Path

import pytest
import sac
from offline_data import write_hdf5

from algos.errors import UserError
from benchmarks import suite as suites
from benchmarks import sweep

KEYS = {
    "purpose": '"a test"', "tasks": '["Pendulum-v1"]', "seeds": '"0:2"', "total_steps": "100", "eval_every": "100",
    "eval_episodes": "1", "score": '"last"', "references": '"table.csv"', "published": '["published.csv"]',
    "flags": "{ batch_size = 8 }",
}  # fmt: skip
ENTRY = {"script": '"sac"', "flags": "{ critic_lr = 1e-3 }", "tasks": "{ Pendulum-v1 = { tau = 0.1 } }",
         "vary": "{ discount = [0.9, 0.99] }"}  # fmt: skip
# what a value may be in TOML
VALUES = [
    "true", "3", "-1", "0", "1.5", "-0.0", "nan", "inf", "-inf", '"x"', '""', "[]", "[[]]", "{}", "{ a = 1 }",
    "1979-05-27",
    "99999999999999999999", "0x" + "f" * 5_000, "9" * 5_000, '["a", 1]', "[true]", '["\\u0000"]', '"\\u0000"', '"-x"',
    '"../x"', "[-1]", "[0, 0]", '["x"]', f'"{"x" * 5_000}"', '["' + "x" * 5_000 + '"]', "[1e400]",
    "[9223372036854775808]",
    "{ a = { b = { c = 1 } } }", '"a\\nb"', '"0:99999999"', '"0 0"', '"٣"',
]  # fmt: skip
# those which are right after all
RIGHT = {
    "purpose": {'"x"', '""', '"\\u0000"', '"-x"', '"../x"', f'"{"x" * 5_000}"', '"a\\nb"', '"0:99999999"', '"0 0"',
                '"٣"'},
    "seeds": {'"٣"'}, "total_steps": {"3"}, "eval_every": {"3"}, "eval_episodes": {"3", "0"}, "published": {"[]"},
    "flags": {"{}"}, "entry.flags": {"{}"}, "entry.tasks": {"{}"},
}  # fmt: skip


def text(keys: dict[str, str] = KEYS, entry: dict[str, str] = ENTRY, name: str = "mine") -> str:
    """A suite of one algorithm."""
    top, table = ("\n".join(f"{key} = {value}" for key, value in part.items()) for part in (keys, entry))
    return f"{top}\n[algorithms.{name}]\n{table}\n"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("task,low,high,source\nPendulum-v1,-1000,0,x\n")
    Path("published.csv").write_text("task,algorithm,score,spread,seeds,protocol,source\nPendulum-v1,sac,-1,,,x,y\n")


def refusal(content: str | bytes, act=lambda: suites.read(Path("mine.toml"))) -> str:
    """The sentence by which a suite is refused; nothing is written."""
    Path("mine.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    before = set(Path().rglob("*"))
    with pytest.raises(UserError) as refused:
        act()
    said = str(refused.value)
    assert "\n" not in said and len(said) < 1_500 and set(Path().rglob("*")) == before
    return said


def test_the_suite_that_the_others_damage_is_right():
    Path("mine.toml").write_text(text())
    (entry,) = suites.read(Path("mine.toml")).entries
    assert entry.args["Pendulum-v1"].batch_size == 8 and entry.variant == "mine"


@pytest.mark.parametrize("key", [*KEYS, *(f"entry.{key}" for key in ENTRY), "algorithms", "algorithms.mine"])
def test_values_of_wrong_types_and_sizes_are_refused(key):
    for value in VALUES:
        keys, entry = dict(KEYS), dict(ENTRY)
        if key in keys:
            keys[key] = value
        else:
            entry[key.removeprefix("entry.")] = value
        content = text(keys, entry)
        if key.startswith("algorithms"):
            top = "\n".join(f"{name} = {right}" for name, right in KEYS.items())
            content = f"{top}\n{key} = {value}\n"
        if value in RIGHT.get(key, ()):
            Path("mine.toml").write_text(content)
            suites.read(Path("mine.toml"))
        elif key != "algorithms.mine" or value != "{}":  # this is a script `mine`, which there is not
            assert refusal(content).startswith("mine.toml: "), value


@pytest.mark.parametrize("flag", ["critic_lr", "hidden", "compile", "buffer_size", "tau", "env_id", "seeds", "out"])
def test_flags_of_wrong_types_and_sizes_are_refused(flag):
    right = {"critic_lr": {"3", "1.5"}, "compile": {"true"}, "buffer_size": {"3"}, "hidden": {"[]"}}
    for value in set(VALUES) - right.get(flag, set()):
        assert "mine.toml: " in refusal(text(entry={"script": '"sac"', "flags": f"{{ {flag} = {value} }}"})), value


@pytest.mark.parametrize("flag", ["critic_lr", "tau", "batch_size", "hidden", "vary", "device", "nothing"])
def test_variations_of_wrong_types_and_sizes_are_refused(flag):
    for value in (*VALUES, "[0.5, 0.5]", "[-0.5]", "[nan]", "[1e-3, 'a']", "[[1]]", "[0.1, 1e400]", "[0.1, true]"):
        assert "mine.toml: " in refusal(text(entry={"script": '"sac"', "vary": f"{{ {flag} = {value} }}"})), value


def only(name: str = "mine", **keys: str) -> str:
    """A suite of short SAC, with other entries of its algorithm."""
    return text({k: v for k, v in KEYS.items() if k not in ("references", "published", "flags")}, keys, name)


def on(tasks: str, script: str, flags: str = "{}") -> str:
    """A suite of a script on tasks."""
    return only(script=f'"{script}"', flags=flags).replace('["Pendulum-v1"]', tasks)


ALGORITHMS = ["-x", "--out", "..", ".", "", "a/b", "a\\\\b", "/abs", "x" * 300, "a\\nb", "a\\u0000b", "\\t"]
GRID = [number / 20_000 for number in range(1, 10_001)]
CONTENT = {
    # what scripts refuse themselves
    "sac on discrete actions": (on('["CartPole-v1"]', "sac"), "CartPole-v1 has Discrete actions; this needs"),
    "dqn on continuous actions": (on('["Pendulum-v1"]', "dqn"), "Pendulum-v1 has Box actions; this needs a finite"),
    "one of two tasks": (on('["Pendulum-v1", "CartPole-v1"]', "td3"), "mine on CartPole-v1: --env-id: CartPole-v1 has"),
    "trpo on discrete actions": (on('["CartPole-v1"]', "trpo"), "has Discrete actions"),
    "stream_q on continuous actions": (
        on('["Pendulum-v1"]', "stream_q").replace("eval_episodes = 1", "eval_episodes = 0"), "has Box actions"
    ),
    "sac on a table": (on('["tabular/taxi"]', "sac"), "has Discrete actions"),
    "levels of discrete actions": (on('["CartPole-v1"]', "ppo", "{ levels = [-1, 1] }"), "CartPole-v1"),
    "levels out of range": (on('["Pendulum-v1"]', "dqn", "{ levels = [-3, 3] }"), "levels must lie in [-1, 1]"),
    "observations in a dictionary": (on('["FetchReach-v4"]', "sac"), "FetchReach-v4"),
    "no such table": (on('["tabular/taxy"]', "sqirl"), "there is no table 'taxy'"),
    "a table of a billion decisions": (on('["tabular/taxi-h1000000000"]', "sqirl"), "an episode has 1 to"),
    "no such environment": (on('["Hoper-v5"]', "sac"), "the closest ids are Hopper-v5"),
    "an environment of long ago": (on('["Hopper-v2"]', "sac"), "take Hopper-v5"),
    "a module that is not there": (on('["nothing.at.all:Task-v0"]', "sac"), "nothing"),
    "a path as a task": (on('["../../etc/passwd"]', "sac"), "--env-id"),
    "a flag as a task": (on('["--help"]', "sac"), "--env-id"),
    "a task with a null byte": (on('["Pend\\u0000ulum-v1"]', "sac"), "--env-id"),
    "a task of 5,000 letters": (on(f'["{"x" * 5_000}"]', "sac"), "--env-id"),
    "no task": (on("[]", "sac"), "tasks names no task"),
    "an option that the task lacks": (
        on('["Pendulum-v1"]', "sac", '{ env_option = ["h=1"] }'), "--env-option: Pendulum-v1 has no option h"
    ),
    "a time limit as an option": (
        on('["CartPole-v1"]', "stream_q", '{ env_option = ["max_episode_steps=5"] }').replace(
            "eval_episodes = 1", "eval_episodes = 0"
        ),
        "--env-option max_episode_steps: use --max-episode-steps instead",
    ),
    "an option for a dataset": (on('["data.hdf5"]', "bc", '{ env_option = ["g=1"] }'), "bc has no flag 'env_option'"),
    "a task twice": (on('["Pendulum-v1", "Pendulum-v1"]', "sac"), "tasks[1]: Pendulum-v1 occurs twice"),
    "tasks that share a folder": (on('["a/x.csv", "b/x.csv"]', "stream_td"), "tasks[1]: b/x.csv occurs twice"),
    "an environment for iql": (on('["Pendulum-v1"]', "iql"), "--dataset takes d4rl/"),
    "a dataset that is not there": (on('["missing.hdf5"]', "iql"), "there is no file missing.hdf5"),
    "no such dataset of D4RL": (on('["d4rl/hoper-medium-v2"]', "iql"), "hoper-medium-v2"),
    "a dataset of Minari without version": (on('["minari/x"]', "bc"), "has no version"),
    "a series that is not there": (on('["missing.csv"]', "stream_td"), "missing.csv"),
    "more steps than the series has": (
        on('["short.csv"]', "stream_td").replace("total_steps = 100", "total_steps = 10000"), "short.csv"
    ),
    "evaluations of streams": (on('["Pendulum-v1"]', "stream_ac"), "eval-episodes must be 0"),
    "too many seeds": (only(script='"sac"').replace('"0:2"', '"0:10001"'), "at most 10,000 seeds"),
    "a form for tables": (on('["CartPole-v1"]', "sqirl", '{ form = "trees" }'), "flags.form must be"),
    "twenty thousand layers": (only(script='"sac"', flags=f"{{ hidden = {[8] * 20_000} }}"), "takes at most 1,000"),
    "a hundred million runs": (only(script='"sac"', vary=f"{{ tau = {GRID}, discount = {GRID} }}"), "100,000,000 runs"),
    "values of a grid twice": (only(script='"sac"', vary=f"{{ tau = {[0.5] * 10_000} }}"), "tau has 0.5 twice"),
    "a penalty without sense": (on('["data.hdf5"]', "mopo", "{ penalty_weight = -1.0 }"), "penalty-weight must"),
    # files
    "an empty file": ("", "purpose is missing"),
    "text": ("this is no TOML", "mine.toml: Expected"),
    "not UTF-8": (b'purpose = "\xff\xfe"', "mine.toml: 'utf-8' codec"),
    "UTF-16": (text().encode("utf-16"), "mine.toml: 'utf-8' codec"),
    "null bytes": (b"\0" * 1_000, "mine.toml: "),
    "a list that is too deep": (f"purpose = {'[' * 50_000}", "nested too deeply"),
    "a megabyte": ("#" * 2_000_000, "mine.toml is too large"),
    "a table that is too deep": ("purpose = " + "{a=" * 50_000, "nested too deeply"),
    "a key that is too deep": (f"{'.'.join('a' * 50_000)} = 1", "nested too deeply"),
    "half a file": (text()[:150], "mine.toml: "),
    "a key twice": ('purpose = "x"\n' + text(), "mine.toml: Cannot overwrite a value"),
    "an algorithm twice": (text() + "[algorithms.mine]\n", "mine.toml: Cannot declare"),
    "a table as a key": (text() + "[purpose]\n", "mine.toml: Cannot"),
    "an unknown table": (text() + "[algorithm.x]\n", "unknown key algorithm; did you mean algorithms?"),
    "an unknown key": (only(scipt='"sac"'), "unknown key algorithms.mine.scipt; did you mean script?"),
    "a hidden key": (only(**{'"\\u0000"': "1"}), "unknown key"),
    # scripts
    "no such script": (only(script='"a2c"'), "there is no script 'a2c'"),
    "a script elsewhere": (only(script='"missing.py"'), "there is no script 'missing.py'"),
    "a path without py": (only(script='"../../single_file/sac"'), "there is no script"),
    "a script of 5,000 letters": (only(script=f'"{"x" * 5_000}.py"'), "there is no script"),
    "a script with a null byte": (only(script='"a\\u0000.py"'), "there is no script"),
    "a folder as a script": (only(script='"folder.py"'), "there is no script 'folder.py'"),
    "a script that ends": (only(script='"ends.py"'), "cannot be loaded as a script: SystemExit"),
    "a script without Args": (only(script='"empty.py"'), "cannot be loaded as a script: AttributeError"),
    "a script with a fault": (only(script='"fault.py"'), "cannot be loaded as a script: SyntaxError"),
    "a script by another's name": (only(script='"copy.py"'), "copy.py calls its run 'sac', and results are stored"),
    "a script with other Args": (only(script='"other.py"'), "its Args are not RunArgs"),
    "a script that is no text": (only(script='"bytes.py"'), "cannot be loaded as a script: "),
    "a script that needs more": (only(script='"needs.py"'), "missing 1 required"),
    # tables of scores
    "no such references": (text({**KEYS, "references": '"nowhere"'}), "there is no table 'nowhere'"),
    "references elsewhere": (text({**KEYS, "references": '"/dev/null"'}), "there is no table"),
    "a folder as references": (text({**KEYS, "references": '"folder.py"'}), "there is no table"),
    "references without numbers": (text({**KEYS, "references": '"words.csv"'}), "words.csv: low must hold numbers"),
    "infinite references": (text({**KEYS, "references": '"infinite.csv"'}), "infinite.csv: high must hold numbers"),
    "references without the task": (text({**KEYS, "references": '"d4rl"'}), "has no row for Pendulum-v1"),
    "no such published table": (text({**KEYS, "published": '["nowhere"]'}), "published: there is no table"),
    "a published table twice": (text({**KEYS, "published": '["corl", "corl"]'}), "published[1]: corl occurs twice"),
    "a published table of bytes": (text({**KEYS, "published": '["bytes.py"]'}), "bytes.py"),
    **{f"an algorithm {name}": (only(f'"{name}"', script='"sac"'), "names a folder") for name in ALGORITHMS},
}  # fmt: skip


@pytest.mark.parametrize("name", CONTENT)
def test_a_suite_is_refused_in_a_sentence(name):
    Path("folder.py").mkdir()
    Path("ends.py").write_text("raise SystemExit(3)")
    Path("empty.py").write_text("")
    Path("fault.py").write_text("def (")
    Path("other.py").write_text("class Args: pass")
    Path("copy.py").write_text(Path(sac.__file__).read_text())
    Path("bytes.py").write_bytes(b"\xff\0\xfe" * 100)
    lines = ["from dataclasses import dataclass", "from algos.cli import RunArgs", "@dataclass(kw_only=True)"]
    Path("needs.py").write_text("\n".join([*lines, "class Args(RunArgs):", "    x: int"]))
    Path("words.csv").write_text("task,low,high,source\nPendulum-v1,a,b,x\n")
    Path("infinite.csv").write_text("task,low,high,source\nPendulum-v1,0,inf,x\n")
    Path("short.csv").write_text("a,b\n" + "1,2\n" * 50)
    write_hdf5(Path("data.hdf5"), episodes=2)
    content, words = CONTENT[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        said = refusal(content)
    assert words in said and any(suffix in said for suffix in (".toml", ".py", ".csv")), said


@pytest.mark.parametrize("change", ["folder", "loop", "missing"])
def test_a_suite_that_is_no_file_is_refused(change, monkeypatch):
    Path("a.toml").mkdir()
    Path("b.toml").symlink_to("b.toml")
    with pytest.raises(UserError, match=r"^there is no suite '.\.toml': give the path of a file"):
        suites.find({"folder": "a.toml", "loop": "b.toml", "missing": "c.toml"}[change])
    for name in ("", "\0", "x" * 5_000, "a/../..", "-x", "smoke.toml"):
        with pytest.raises(UserError, match=r"^there is no suite"):
            suites.find(name)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("{ dynamics = 'missing.safetensors' }", "missing.safetensors"),
        ("{ rollout_length = 0 }", "rollout-length must"),
        ("{ bf16 = true }", "--bf16 works only"),
        ("{ stop_when_solved = true }", "--stop-when-solved works for ids tabular/"),
    ],
)
def test_what_is_not_there_is_refused_before_the_sweep_begins(flags, words):
    write_hdf5(Path("data.hdf5"), episodes=2)
    args = sweep.Args("mine.toml", out=Path("new"), device="cpu")
    assert words in refusal(on('["data.hdf5"]', "mopo", flags), lambda: sweep.main(args))


def test_a_dataset_that_has_not_been_made_is_refused_before_the_sweep_begins(monkeypatch, tmp_path):
    (tmp_path / "minari").mkdir()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    for args in (sweep.Args("mine.toml", out=Path("new"), device="cpu", job=job) for job in (None, 0)):
        said = refusal(on('["local/hopper-medium-v0"]', "iql"), lambda args=args: sweep.main(args))
        assert "make it: python -m benchmarks.collect hopper-medium-v0" in said
