"""From arguments to data made ready: rewards, actions and observations by method, and what is refused."""

import importlib
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import h5py
import iql
import numpy as np
import pandas as pd
import pytest
import torch
import tyro
from offline_data import record, seen_data, write_hdf5
from scripts import EVALUATED, differing, module_of, short

from algos.arguments import flag
from algos.cli import cli, with_settings
from algos.data import load
from algos.data.record import EDGE
from algos.errors import UserError
from algos.offline import OfflineArgs, offline_run
from envs import d4rl

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.filterwarnings("ignore")  # Minari's, about authors, and Gymnasium's, about v4


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "d4rl"))
    monkeypatch.chdir(tmp_path)


def arrays(obs_size=3, act_size=1, count=12, scale=1.0):
    """Three episodes that end by turns, the first of which is in D4RL's own files a timeout."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(count, obs_size)).astype(np.float32)
    ends = np.arange(count) % 4 == 3
    return {
        "observations": obs,
        "next_observations": np.roll(obs, -1, 0) + ends[:, None].astype(np.float32),
        "actions": rng.uniform(-scale, scale, (count, act_size)).astype(np.float32),
        "rewards": rng.normal(size=count).astype(np.float32),
        "terminals": ends & (np.arange(count) > 4),
        "timeouts": ends & (np.arange(count) < 4),
    }


def write(path, columns) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, array in columns.items():
            file[key] = array
    return str(path)


def settings(tmp_path, dataset, **others) -> OfflineArgs:
    return OfflineArgs(**{"dataset": dataset, "out": tmp_path / "runs", "quiet": True, "device": "cpu", **others})


def prepared(tmp_path, dataset, reward=None, **others):
    """The data as a method gets it, without evaluation."""
    args = settings(tmp_path, dataset, **{"eval_episodes": 0, **others})
    return offline_run(args, "test", reward)[1]


def pendulum(name="test/pendulum-v0", steps=6):
    record("Pendulum-v1", name, steps // 2, seeds=(0, 1), max_episode_steps=3)
    return f"minari/{name}"


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("d4rl/hopper-medium-v2", "locomotion"),
        ("minari/mujoco/walker2d/medium-v0", "locomotion"),
        ("local/halfcheetah-medium-replay-v0", "locomotion"),
        ("d4rl/ant-medium-v2", "other"),
        ("d4rl/antmaze-large-play-v2", "antmaze"),
        ("minari/D4RL/antmaze/umaze-v1", "antmaze"),
        ("minari/D4RL/pen/human-v2", "adroit"),
        ("d4rl/relocate-cloned-v1", "adroit"),
        ("minari/classic/pendulum-v0", "other"),
        ("files/Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse_fixed.hdf5", "antmaze"),
        ("files/mini_kitchen_microwave_kettle_light_slider-v0.hdf5", "kitchen"),
        ("d4rl/kitchen-mixed-v0", "kitchen"),
        ("d4rl/maze2d-umaze-v1", "maze2d"),
        ("ogbench/pointmaze-medium-navigate-v0", "maze2d"),
        ("/home/antmaze-project/hopper_medium-v2.hdf5", "locomotion"),
        ("/home/kitchen/mine.npz", "other"),
    ],
)
def test_the_domain_is_told_by_the_name(name, domain):
    assert OfflineArgs(dataset=name).domain == domain


def test_a_file_has_the_defaults_of_the_dataset_whose_name_it_has():
    mopo, mobile = (importlib.import_module(name).Args for name in ("mopo", "mobile"))
    for name in ("hopper-medium-replay.hdf5", "hopper medium_replay-v2.npz"):
        assert mopo(dataset=name, env_id="Hopper-v5").penalty_weight == 2.5
        assert mobile(dataset=name, env_id="Hopper-v5").penalty_weight == 0.1


def from_command_line(script, *words):
    return tyro.cli(importlib.import_module(script).Args, args=words)


@pytest.mark.parametrize(
    ("script", "dataset", "env_id", "values"),
    [
        ("iql", "demo.hdf5", "AdroitHandPen-v1", {"temperature": 0.5, "dropout": 0.1}),
        ("iql", "demo.hdf5", "AdroitHandDoorSparse-v1", {"temperature": 0.5, "dropout": 0.1}),
        ("iql", "demo.hdf5", "gymnasium_robotics:FrankaKitchen-v1", {"temperature": 0.5, "dropout": 0.1}),
        ("iql", "demo.hdf5", "HalfCheetah-v4", {"temperature": 3.0, "dropout": 0.0}),
        ("recoil", "demo.hdf5", "AdroitHandPen-v1", {"expert_transitions": 100, "layer_norm": "on"}),
        ("mobile", "medium.hdf5", "Hopper-v4", {"penalty_weight": 1.5, "temperature": 0.2}),
        ("mobile", "hopper-medium-v2-seed1.hdf5", "", {"penalty_weight": 1.5, "temperature": 0.2}),
        ("mobile", "local/team/hopper-medium-replay-v0", "", {"penalty_weight": 0.1, "temperature": 0.0}),
        ("mobile", "hopper.hdf5", "Hopper-v4", {"penalty_weight": 0.5, "temperature": 0.0}),
    ],
)
def test_defaults_follow_names_however_they_are_spelt(script, dataset, env_id, values):
    args = module_of(script).Args(dataset=dataset, env_id=env_id)
    assert {name: getattr(args, name) for name in values} == values


def test_the_help_text_shows_the_defaults_of_all_domains(capsys):
    with pytest.raises(SystemExit):
        from_command_line("recoil", "--help")
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for default in (
        "(default: '5000, antmaze 100000')",  # an integer of every offline script
        "(default: '200, walker2d 100, kitchen 1')",
        "(default: '3.0, kitchen 0.5')",
        "(default: 'off, kitchen on, adroit on')",
        "(default: cosine)",
    ):
        assert default in shown


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ([], ("range", 0.7, 10, "cosine")),
        (["--dataset", "d4rl/antmaze-umaze-v2"], ("minus_one", 0.9, 100, "cosine")),
        # a value that is given wins, even one that is the default of another domain
        (
            ["--dataset", "d4rl/antmaze-umaze-v2", "--expectile", "0.7", "--reward", "none", "--eval-episodes", "10"],
            ("none", 0.7, 10, "cosine"),
        ),
        (["--decay", "none", "--expectile", "0.9"], ("range", 0.9, 10, "none")),
    ],
)
def test_defaults_on_the_command_line_are_the_domains(words, settings):
    args = from_command_line("iql", *words)
    assert (args.reward, args.expectile, args.eval_episodes, args.decay) == settings
    assert type(args.expectile) is float and type(args.eval_episodes) is int and type(args.reward) is str


def test_the_run_of_a_grid_keeps_the_defaults_of_its_domain():
    args = iql.Args(dataset="d4rl/antmaze-umaze-v2", vary=("expectile=0.7,0.8",))
    varied, seeds = with_settings(args, [3, 4])
    assert varied.expectile.tolist() == [0.7, 0.7, 0.8, 0.8] and seeds == [3, 4, 3, 4]
    assert (varied.temperature, varied.reward, varied.eval_every) == (10.0, "minus_one", 100_000)


@pytest.mark.parametrize(
    ("dataset", "given", "every", "episodes"),
    [
        ("d4rl/hopper-medium-v2", {}, 5_000, 10),
        ("minari/D4RL/antmaze/umaze-v1", {}, 100_000, 100),
        ("d4rl/antmaze-umaze-v2", {"eval_every": 7, "eval_episodes": 0}, 7, 0),
    ],
)
def test_evaluation_is_the_domains_unless_given(dataset, given, every, episodes):
    args = OfflineArgs(dataset=dataset, **given)
    assert (args.eval_every, args.eval_episodes) == (every, episodes)


@pytest.mark.parametrize("reward", ["range", "minus_one", "none", None])
def test_rewards_are_changed_as_the_method_says(tmp_path, reward):
    columns = arrays()
    data = prepared(tmp_path, write(tmp_path / "mine.hdf5", columns), reward)
    before = columns["rewards"]
    returns = before.reshape(3, 4).astype(float).sum(1)
    changed = {"minus_one": before - 1, "range": before * 1000 / np.ptp(returns)}
    wanted = changed.get(reward, before)
    np.testing.assert_allclose(data.reward[data.index], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("script", "file", "change"),
    [
        ("bc", "antmaze.hdf5", "none"),
        ("bc", "hopper.hdf5", "none"),
        ("recoil", "antmaze.hdf5", "none"),
        ("td3_bc", "hopper.hdf5", "none"),
        *((script, "antmaze.hdf5", "minus_one") for script in ("td3_bc", "iql", "xql", "f_dvl")),
        *((script, "hopper.hdf5", "range") for script in ("iql", "xql", "f_dvl")),
        ("iql", "mine.hdf5", "none"),
    ],
)
def test_a_script_learns_from_the_rewards_of_its_domain(tmp_path, train, script, file, change):
    columns = arrays()
    path = write(tmp_path / file, columns)
    expert = {"expert_dataset": path, "expert_trajectories": 9} if script == "recoil" else {}
    with seen_data() as seen:
        train(script, dataset=path, total_steps=1, batch_size=2, hidden=(4,), eval_episodes=0, **expert)
    before = columns["rewards"]
    returns = before.reshape(3, 4).astype(float).sum(1)
    wanted = {"none": before, "minus_one": before - 1, "range": before * 1000 / np.ptp(returns)}[change]
    np.testing.assert_allclose(seen[0].reward[seen[0].index], wanted, rtol=1e-5)
    standardised = seen[0].obs_scaling is not None
    assert standardised == (script == "td3_bc")


def test_observations_are_standardised_where_the_method_says_so(tmp_path):
    columns = arrays()
    path = write(tmp_path / "mine.hdf5", columns)
    obs = columns["observations"]
    np.testing.assert_array_equal(prepared(tmp_path, path).obs[:4], obs[:4])
    data = prepared(tmp_path, path, standardise=True, variant="standardised")
    np.testing.assert_allclose(data.obs[:4], ((obs - obs.mean(0)) / (obs.std(0) + 1e-3))[:4], atol=1e-6)


def test_exact_d4rl_is_an_argument(tmp_path):
    path = write(tmp_path / "mine.hdf5", arrays())
    assert len(prepared(tmp_path, path)) == 12
    assert len(prepared(tmp_path, path, exact_d4rl=True, variant="exact")) == 10


def test_the_data_is_the_same_with_and_without_evaluation(tmp_path):
    name = pendulum()
    raw = load(name)
    assert raw.action.abs().max() > 1  # bounds are -2 and 2
    blind = prepared(tmp_path, name)
    run, seeing = offline_run(settings(tmp_path, name, eval_episodes=1, variant="evaluated"), "test")
    assert torch.equal(blind.rows, seeing.rows) and blind.digest == seeing.digest
    np.testing.assert_allclose(seeing.action[seeing.index], raw.action[raw.index] / 2, atol=EDGE)
    assert run.facts["evaluated_in"] == "Pendulum-v1" and run.facts["env_options"] == {"max_episode_steps": 3}
    assert run.evaluator.venv.envs[0].spec.max_episode_steps == 3


def test_actions_of_a_file_fit_the_environment_that_is_named(tmp_path, capsys):
    path = write(tmp_path / "mine.hdf5", arrays(scale=2.0))
    data = prepared(tmp_path, path, env_id="Pendulum-v1")
    np.testing.assert_allclose(data.action[data.index], (arrays(scale=2.0)["actions"] / 2).clip(EDGE - 1, 1 - EDGE))
    assert capsys.readouterr().err == ""
    with pytest.raises(UserError, match=r"[0-9]+% of actions lie beyond -1 and 1, and no environment tells bounds"):
        prepared(tmp_path, path, variant="blind")  # or the policy could not act as the data does
    within = write(tmp_path / "within.hdf5", arrays())
    with pytest.raises(UserError, match=r"--expert-dataset .*beyond -1 and 1"):
        offline_run(settings(tmp_path, within, eval_episodes=0, variant="expert"), "test", expert=load(path))
    few = str(write_hdf5(tmp_path / "few.hdf5"))
    with h5py.File(few, "a") as file:
        file["actions"][:2] = 2.0  # of 300, such as noise leaves
    clipped = prepared(tmp_path, few, variant="blind")
    assert clipped.action.abs().max() == pytest.approx(1 - EDGE)
    assert "of actions lie out of bounds, and are clipped" in capsys.readouterr().err


def test_defaults_that_words_in_names_decide_on_are_told(tmp_path, capsys):
    """Of a file of one's own, whose name or environment may have a word of D4RL's by chance."""
    for name, said in (
        ("mine", ""),
        ("door_opening", "--temperature 0.5 (as for adroit), --dropout 0.1 (as for adroit)"),
    ):
        path = write_hdf5(tmp_path / f"{name}.hdf5")
        args = iql.Args(dataset=str(path), out=tmp_path, eval_episodes=0, total_steps=1)
        offline_run(args, "iql")
        assert ("by words in the names" in (out := capsys.readouterr().out)) == bool(said) and said in out
    args = iql.Args(dataset=str(path), out=tmp_path, eval_episodes=0, total_steps=1, temperature=1.0, variant="given")
    offline_run(args, "iql")
    assert "of --env-id: --dropout 0.1 (as for adroit)\n" in capsys.readouterr().out


def test_an_id_with_its_module_is_the_same_environment(tmp_path, monkeypatch):
    """Also as that of a dataset whose environment has options, which --env-id would drop otherwise."""
    path = write(tmp_path / "mine.hdf5", arrays())
    recorded = {"env_id": "Pendulum-v1", "env_options": {"g": 3.0}}
    monkeypatch.setattr("algos.offline.load", lambda name, *_: replace(load(name), **recorded))
    for number, (env_id, options) in enumerate((("gymnasium:Pendulum-v1", {"g": 3.0}), ("Pendulum-v1", {"g": 3.0}))):
        args = settings(tmp_path, path, env_id=env_id, eval_episodes=0, variant=str(number))
        run, _ = offline_run(args, "test")
        assert run.facts["env_options"] == options and run.facts["evaluated_in"] == "Pendulum-v1"
        # with its module and without evaluations, it is the environment of the policies, which others have to make
        assert run.environment == {"env_id": env_id, "options": options, "tasks": []}


def test_rewards_are_asked_for_by_the_flag_whose_data_has_none(tmp_path):
    plain = {name: column for name, column in arrays(count=8).items() if name != "rewards"}
    expert = load(write(tmp_path / "expert.hdf5", plain))
    args = settings(tmp_path, write(tmp_path / "mine.hdf5", arrays()), eval_episodes=0)
    with pytest.raises(UserError, match=r"--expert-dataset .*expert.hdf5 has no rewards, which --top-fraction needs"):
        offline_run(args, "bc", "none", expert=expert, top=0.5)


def test_more_data_follows(tmp_path):
    path = write(tmp_path / "mine.hdf5", arrays())
    more = load(write(tmp_path / "more.hdf5", arrays(count=8)))
    run, data = offline_run(settings(tmp_path, path, eval_episodes=0), "test", expert=more)
    assert len(data) == 20 and run.facts["transitions"] == 20


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (arrays(), {"eval_episodes": 1}, "names no environment to evaluate in: give --env-id, or --eval-episodes 0"),
        (arrays(), {"env_id": "Hopper-v5"}, "has 3 numbers in its observations, where Hopper-v5 has 11"),
        (arrays(act_size=2), {"env_id": "Pendulum-v1"}, "has 2 numbers in its actions, where Pendulum-v1 has 1"),
        (arrays(4), {"env_id": "CartPole-v1"}, "has 1 numbers in its actions, where CartPole-v1 has Discrete"),
        ({k: v for k, v in arrays().items() if k != "rewards"}, {}, "has no rewards, which test learns from"),
        (arrays() | {"rewards": np.full(12, np.nan)}, {}, "the reward of transition 0 is not a finite number"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(tmp_path, columns, options, words):
    args = settings(tmp_path, write(tmp_path / "mine.hdf5", columns), **{"eval_episodes": 0, **options})
    with pytest.raises(UserError, match=words):
        offline_run(args, "test", "none")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--seeds", "-1"], "--seeds must not be negative"),
        (["--dropout", "1"], r"--dropout must lie in [0, 1), got 1.0"),
        (["--device", "gpu"], "--device takes auto"),
        (["--env-id", "Hoper-v5"], "no environment 'Hoper-v5'"),
        (["--exact-d4rl"], "--exact-d4rl is for files of D4RL's layout"),
        (["--expert-dataset", "nothing"], "--expert-dataset takes d4rl/…"),
        (["--expert-dataset", "local/hopper-good-v0"], "--expert-dataset: local/hopper-good-v0 is not in"),
    ],
)
def test_bad_arguments_are_refused_before_data_is_loaded(tmp_path, monkeypatch, capsys, flags, words):
    import bc

    (tmp_path / "local" / "mine-v0").mkdir(parents=True)  # damaged, if it were loaded
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["bc.py", "--dataset", "local/mine-v0", "--device", "cpu", *flags])
    with pytest.raises(SystemExit) as stop:
        cli(bc.main)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and words in error


def broken(**_):
    raise AssertionError("not with this MuJoCo")


class Whole(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Box(0, 4, (1,), np.int64)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (broken, r"evaluated in test/Unfit-v0, which cannot be made here .*not with this MuJoCo"),
        (Whole, r"cannot be evaluated in its environment: test/Unfit-v0 has whole numbers as actions"),
    ],
)
def test_an_environment_that_does_not_fit_is_said_in_a_sentence(env, said, tmp_path):
    gym.register("test/Unfit-v0", env)
    try:
        path = write(tmp_path / "mine.hdf5", arrays())
        with pytest.raises(UserError, match=said):
            offline_run(settings(tmp_path, path, env_id="test/Unfit-v0", eval_episodes=0), "test")
    finally:
        del gym.registry["test/Unfit-v0"]


def test_the_environment_of_the_data_is_named_where_it_cannot_be_found(tmp_path):
    gym.register("test/Own-v0", gym.spec("Pendulum-v1").entry_point, max_episode_steps=8)
    try:
        record("test/Own-v0", "test/own-v0", 8)
    finally:
        del gym.registry["test/Own-v0"]
    said = r"^--dataset minari/test/own-v0 is evaluated in test/Own-v0, which cannot be found here .*with --env-id, or"
    with pytest.raises(UserError, match=said):
        offline_run(settings(tmp_path, "minari/test/own-v0"), "test")


def test_what_a_run_of_d4rl_data_stores(train):
    place = d4rl.find("hopper-medium-v2").place
    write(place, arrays(11, 3))
    small = {"hidden": (4,), "batch_size": 2, "total_steps": 1, "eval_episodes": 1}
    result = train("bc", dataset="d4rl/hopper-medium-v2", **small)
    facts, data = result.config["facts"], load("d4rl/hopper-medium-v2")
    assert facts["digest"] == data.digest and facts["transitions"] == 12
    assert facts["source"].endswith("gym_mujoco_v2/hopper_medium-v2.hdf5")
    assert (facts["low"], facts["high"], facts["evaluated_in"]) == (-20.272305, 3234.3, "Hopper-v4")
    assert "v5" in facts["note"]
    table = pd.read_parquet(result.folder / "eval.parquet")
    assert (table["return"] > 0).all()


@pytest.mark.parametrize("name", ["antmaze-umaze-v2", "maze2d-umaze-v1", "maze2d-eval-umaze-v1", "kitchen-mixed-v0"])
def test_data_that_no_environment_fits_is_refused_before_it_is_loaded(name):
    said = r"no environment of today has its observations, so give --eval-episodes 0 \(not equivalent: "
    with pytest.raises(UserError, match=said):
        OfflineArgs(dataset=f"d4rl/{name}").check_task()
    OfflineArgs(dataset=f"d4rl/{name}", eval_episodes=0).check_task()
    OfflineArgs(dataset=f"d4rl/{name}", env_id="Hopper-v5").check_task()


def test_scores_and_for_which_environment_they_are_meant_are_told(tmp_path, capsys):
    write(d4rl.find("walker2d-medium-v2").place, arrays(17, 6))
    args = settings(tmp_path, "d4rl/walker2d-medium-v2", env_id="Walker2d-v5", eval_episodes=1, quiet=False)
    run, _ = offline_run(args, "test")
    assert run.facts["note"] == "its scores are meant for Walker2d-v4"
    said = "in Walker2d-v5 (its scores are meant for Walker2d-v4); its returns of 2 and 4,592 are scores of 0 and 100"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("script", ["bc", "recoil"])
@pytest.mark.parametrize(
    ("task", "count"), [("hopper-random-v2", 200), ("walker2d-random-v2", 100), ("kitchen-mixed-v0", 1)]
)
def test_both_scripts_hide_as_many_trajectories(script, task, count):
    args = importlib.import_module(script).Args(dataset=f"d4rl/{task}")
    assert args.expert_trajectories == count


def test_errors_in_the_expert_data_name_its_flag(tmp_path, train):
    import bc

    path, bad = write(tmp_path / "mine.hdf5", arrays()), arrays()
    bad["observations"][2, 1] = np.nan
    expert = write(tmp_path / "expert.hdf5", bad)
    small = {"dataset": path, "expert_trajectories": 2, "eval_episodes": 0}
    with pytest.raises(UserError, match=r"^--expert-dataset .*expert.hdf5: the observation of transition 2 is not"):
        train("bc", expert_dataset=expert, **small)
    wide = write(tmp_path / "wide.hdf5", arrays(4))
    with pytest.raises(UserError, match="not of the same sizes"):
        train("bc", expert_dataset=wide, **small)
    with pytest.raises(UserError, match=r"^--exact-d4rl is for files of D4RL's layout, which local/hopper-expert-v0"):
        bc.Args(expert_dataset="local/hopper-expert-v0", exact_d4rl=True, **small).check_task()


def test_data_of_ants_fits_an_environment_with_contact_forces(tmp_path):
    write(d4rl.find("ant-medium-v2").place, arrays(111, 8))
    run, data = offline_run(settings(tmp_path, "d4rl/ant-medium-v2", eval_episodes=1), "test")
    assert run.evaluator.venv.single_observation_space.shape == (111,) and data.obs_size == 111


def test_a_run_does_not_go_on_with_other_data(tmp_path, train):
    path = write(tmp_path / "mine.hdf5", arrays())
    small = {"hidden": (4,), "batch_size": 2, "total_steps": 1, "eval_episodes": 0}
    train("bc", dataset=path, **small)
    write(tmp_path / "mine.hdf5", arrays() | {"rewards": np.arange(12.0)})
    with pytest.raises(UserError, match="digest"):
        train("bc", dataset=path, **small)


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("d4rl/hopper-medum-v2", "the closest names are"),
        ("nothing", "--dataset takes d4rl/…"),
        ("mine.npz", "there is no file mine.npz"),
        ("bad.hdf5", "damaged"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capsys, dataset, words):
    import bc

    (tmp_path / "bad.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n")
    monkeypatch.setattr(sys, "argv", ["bc.py", "--dataset", dataset, "--device", "cpu"])
    with pytest.raises(SystemExit) as stop:
        cli(bc.main)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1 and words in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_bitwise_same_end(train_short, tmp_path):
    """The process is killed by SIGKILL; the run has evaluations."""
    settings = EVALUATED | {"total_steps": 300, "checkpoint_every": 25, "eval_every": 75}
    flags = {name: value for name, value in short("xql", **settings).items() if name != "hidden"}
    flags |= {"out": "out", "device": "cpu"}
    words = [f"{flag(name)}={value}" for name, value in flags.items()] + ["--quiet", "--hidden", "8", "6"]
    process = subprocess.Popen([sys.executable, str(ROOT / "single_file" / "xql.py"), *words])
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "out").rglob("checkpoint/*.json"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    killed, whole = (train_short("xql", out=out, resume=True, **settings) for out in ("out", "whole"))
    assert killed.config["step"] == 300 and not differing(killed.parameters, whole.parameters)
    tables = [(result.folder / "eval.parquet").read_bytes() for result in (killed, whole)]
    assert tables[0] == tables[1]
    pd.testing.assert_frame_equal(killed.log, whole.log)
