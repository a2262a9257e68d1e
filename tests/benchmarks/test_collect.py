"""The command that makes datasets: what it writes is what Minari and the loader read, and bad input is refused."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium as gym
import h5py
import minari
import numpy as np
import pandas as pd
import pytest
import torch
import tyro
from safetensors.torch import load_file, save_file

from algos.cli import report_errors
from algos.data import load, validate
from algos.errors import UserError
from algos.models import Simulator
from benchmarks import collect, d3rlpy_peer, dataset, load_scores, policies, random_policy
from benchmarks.collect import Args, recipes
from benchmarks.recipes import antmaze, manipulation
from benchmarks.recipes import locomotion as recipes_of
from benchmarks.recipes.locomotion import Policy, locomotion
from benchmarks.suite import read_references
from envs import make_vec
from envs.make import find_spec


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path


def make(*names, **overrides):
    collect.main(Args(names, **{"steps": 300, "quiet": True, **overrides}))


def test_every_recipe_has_a_name_of_its_own_and_all_are_listed(capsys):
    collect.main(Args(list=True))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(recipes()) == 15 + 8 + 4 + 8 + 6 + 4
    assert all(line.startswith(name) for line, name in zip(lines, recipes(), strict=True))


def test_the_returns_of_own_experts_become_references(tmp_path, monkeypatch):
    """Only the experts that exist get a row; the random policy's return is the other reference."""
    facts = {"return": 3000.5, "steps": 7, "episodes": 10}
    save_file({"weight.0": torch.zeros(1)}, tmp_path / "hopper-expert.safetensors", {"facts": json.dumps(facts)})
    monkeypatch.setattr(random_policy, "POLICIES", tmp_path)
    random_policy.main(random_policy.Args(experts=True, episodes=2, out=tmp_path / "own.csv"))
    table = read_references(tmp_path / "own.csv").set_index("task")
    assert list(table.index) == ["Hopper-v5"] and table.loc["Hopper-v5", "high"] == 3000.5
    assert table.loc["Hopper-v5", "low"] == round(random_policy.random_return("Hopper-v5", 2), 3)
    assert "after 7 steps, 10 episodes" in table.loc["Hopper-v5", "source"]


class Squares(gym.Env):
    """Pays the squares of both dimensions of an action, in episodes of three steps."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
    action_space = gym.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 6.0], np.float32))
    seeds: ClassVar[list[int]] = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(np.square(action).sum()), False, False, {}


def test_the_random_policy_draws_every_action_evenly_between_its_bounds(monkeypatch):
    """A square's mean is 7/3 between -1 and 3 and 12 between 0 and 6; their variances are 304/45 and 576/5."""
    spec = gym.envs.registration.EnvSpec("Squares-v0", entry_point=Squares, max_episode_steps=3)
    monkeypatch.setitem(gym.registry, "Squares-v0", spec)
    monkeypatch.setattr(Squares, "seeds", [])
    found, error = random_policy.random_return("Squares-v0", 400), np.sqrt(3 * (304 / 45 + 576 / 5) / 400)
    assert abs(found - 3 * (7 / 3 + 12)) < 3 * error < 3
    assert len(set(Squares.seeds) - {None}) == 400 and random_policy.random_return("Squares-v0", 400) == found


@pytest.mark.parametrize("buffered", [True, False])
def test_a_reader_that_has_enough_ends_a_command_without_a_word(buffered, monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    output = os.fdopen(writer, "w", buffering=-1 if buffered else 1)  # 1: each line is written at once
    monkeypatch.setattr(sys, "stdout", output)
    with pytest.raises(SystemExit) as stop:
        report_errors(lambda: collect.main(Args(list=True)))
    output.close()  # as Python does when it ends: it must not fail
    assert stop.value.code == 141 and capsys.readouterr().err == ""


def same(data, other, *names):
    """The same transitions in the same trajectories."""
    for name in names or ("obs", "action", "reward", "terminated"):
        assert getattr(data, name)[data.index].equal(getattr(other, name)[other.index]), name
    assert data.obs[data.index + 1].equal(other.obs[other.index + 1])
    assert data.trajectories().tolist() == other.trajectories().tolist()


def test_a_dataset_is_what_minari_and_the_loader_read(place):
    make("hopper-random-v0", d4rl=place / "files")
    episodes = list(locomotion("hopper", "random", 0, 300))
    theirs = minari.load_dataset("local/hopper-random-v0")
    assert theirs.total_steps == 300 and theirs.total_episodes == len(episodes)
    for ours, e in zip(episodes, theirs.iterate_episodes(), strict=True):
        np.testing.assert_array_equal(ours.obs, e.observations)
        np.testing.assert_array_equal(ours.action, e.actions)
        np.testing.assert_array_equal(ours.terminated, e.terminations)
        np.testing.assert_array_equal(ours.truncated, e.truncations)
    data, file = load("local/hopper-random-v0"), load(str(place / "files" / "hopper-random-v0.hdf5"))
    assert data.env_id == "Hopper-v5" and (data.low, data.high) == (-20.272305, 3234.3)
    assert len(data) == 300
    same(data, file)
    assert len(data.trajectories()) == len(episodes)
    with h5py.File(place / "files" / "hopper-random-v0.hdf5") as f:
        assert f["timeouts"][:].sum() == sum(e.truncated[-1] for e in episodes)


def test_states_of_the_simulator_are_stored_before_their_transitions(place):
    """Walker2d's observations have clipped velocities, from which it could not go on."""
    make("walker2d-random-v0", d4rl=place / "files")
    for name in ("local/walker2d-random-v0", str(place / "files" / "walker2d-random-v0.hdf5")):
        data = load(name, states=True)
        rows = data.gather(torch.arange(len(data)))
        _, after, reward, _ = Simulator("Walker2d-v5").step(data.states, rows.action.numpy())
        np.testing.assert_allclose(after, rows.next_obs, atol=1e-5)
        np.testing.assert_allclose(reward, rows.reward, atol=1e-5)
        assert load(name).states is None


def test_the_same_seed_gives_the_same_file(place, monkeypatch):
    files = []
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(place / folder))
        make("halfcheetah-random-v0", seed=seed)
        files.append((place / folder / "local/halfcheetah-random-v0/data/main_data.hdf5").read_bytes())
    assert files[0] == files[1] != files[2]


def test_mazes_have_goals_to_learn_from_and_files_of_their_layout(place):
    pytest.importorskip("gymnasium_robotics")
    pytest.importorskip("ogbench")
    make("maze2d-umaze-v0", d4rl=place)
    data = load("local/maze2d-umaze-v0")
    assert (data.env_id, data.obs_size, data.env_options) == ("PointMaze_UMaze-v3", 8, {})
    assert data.obs[:, :2].equal(data.obs[:, 4:6])  # the achieved goal is the position
    same(data, load(str(place / "maze2d-umaze-v0.hdf5")))
    make("pointmaze-medium-stitch-v0", steps=2_000, npz=place, d4rl=place)
    train, val = (load(f"local/pointmaze-medium-stitch-{name}v0") for name in ("", "val-"))
    assert (len(train), len(val)) == (10 * 200, 200)
    venv = make_vec(train.env_id, 1, **train.env_options)
    assert not any("more than" in line for line in validate(train, venv.single_observation_space))
    file = load(str(place / "pointmaze-medium-stitch-v0.npz"))
    assert not file.rewarded
    same(train, file, "obs", "action", "terminated")
    marked = load(str(place / "pointmaze-medium-stitch-v0.hdf5"))
    same(train, marked)
    assert not marked.breaks
    same(val, load(str(place / "pointmaze-medium-stitch-v0-val.npz")), "obs", "action", "terminated")


def test_stitching_has_goals_and_is_evaluated_in_a_task_that_ends_at_them(place):
    pytest.importorskip("gymnasium_robotics")
    make("stitching-umaze-v0", d4rl=place)
    data = load("local/stitching-umaze-v0")
    assert (data.env_id, data.obs_size, data.env_options) == ("PointMaze_UMaze-v3", 8, {"continuing_task": False})
    assert data.limit == 300
    same(data, load(str(place / "stitching-umaze-v0.hdf5")))
    with h5py.File(place / "stitching-umaze-v0.hdf5") as file:
        ends = file["terminals"][:]
        assert ends.sum() == len(data.trajectories()) and not file["timeouts"][:].any()
        distance = np.linalg.norm(file["next_observations"][:, :2] - file["infos/goal"][:], axis=1)
        np.testing.assert_array_equal(distance <= 0.45, ends)


def test_manipulation_is_stored_as_ogbench_does(place, monkeypatch):
    pytest.importorskip("ogbench")
    monkeypatch.setattr(manipulation.ogbench_play, "__defaults__", (1000, False, 21))  # rows of an episode
    make("scene-play-v0", npz=place)
    train, val = (load(f"local/scene-play-{name}v0") for name in ("", "val-"))
    assert (train.env_id, train.obs_size, train.env_options, len(train), len(val)) == ("scene-v0", 40, {}, 20, 20)
    for data, name in ((train, "scene-play-v0"), (val, "scene-play-v0-val")):
        same(data, load(str(place / f"{name}.npz")), "obs", "action", "terminated")
        with np.load(place / f"{name}.npz") as file:
            assert set(file) == {"observations", "actions", "terminals", "qpos", "qvel", "button_states"}
            assert file["button_states"].dtype == np.int64 and file["button_states"].shape == (21, 2)
            assert np.flatnonzero(file["terminals"]).tolist() == [20]
    assert not train.obs[0].equal(val.obs[0])


def test_an_ant_goes_from_a_run_to_a_dataset(place, monkeypatch, capsys):
    pytest.importorskip("ogbench")
    import sac

    expert = place / "policies" / "ant-direction-expert.safetensors"
    shutil.copytree(recipes_of.POLICIES, place / "policies")
    expert.unlink(missing_ok=True)
    for where in (policies, recipes_of):
        monkeypatch.setattr(where, "POLICIES", place / "policies")
    with pytest.raises(UserError, match=r"antmaze-medium-stitch-v0: there is no policy .* && python -m benchmarks\."):
        make("antmaze-medium-stitch-v0")
    monkeypatch.setattr(policies, "speed", partial(antmaze.speed, steps=30))
    env_id = recipes_of.TRAINED_IN["ant-direction"]
    monkeypatch.setattr(find_spec(env_id), "max_episode_steps", 50)  # its returns are not looked at
    args = {"env_id": env_id, "total_steps": 60, "learning_starts": 40, "eval_every": 100, "eval_episodes": 1}
    args |= {"quiet": True, "threads": 1, "device": "cpu", "hidden": (8, 8), "batch_size": 8}
    sac.main(sac.Args(**args, out=place / "runs"))
    run = place / "runs" / "envs.ant_direction-AntDirection-v0" / "sac" / "default"
    with pytest.raises(UserError, match=r"is no run of sac\.py"):
        policies.main(policies.Args(run, "hopper-expert"))
    config = (run / "config.json").read_text()
    (run / "config.json").write_text(config.replace('"env_option": []', '"env_option": ["a=1"]'))
    with pytest.raises(UserError, match="its environment has other options, a=1"):
        policies.main(policies.Args(run, "ant-direction-expert"))
    (run / "config.json").write_text(config)
    policies.main(policies.Args(run, "ant-direction-expert"))
    training = Policy(expert).training
    assert f"ant-direction-expert: {training['speed']} m/s towards its direction" in capsys.readouterr().out
    assert training["command"].startswith(f"python single_file/sac.py --env-id {env_id} --seeds 0")
    make("antmaze-medium-stitch-v0", npz=place)
    data = load("local/antmaze-medium-stitch-v0")
    assert (data.env_id, data.obs_size, data.act_size, len(data)) == ("antmaze-medium-v0", 29, 8, 200)
    same(data, load(str(place / "antmaze-medium-stitch-v0.npz")), "obs", "action", "terminated")
    assert data.recipe["policies"]["ant-direction-expert"] == training and data.recipe["by"] == "SAC"
    collect.main(Args(list=True))
    assert f"walks {training['speed']:.2f} m/s towards its direction after 60 steps" in capsys.readouterr().out


@pytest.mark.slow
def test_short_ways_within_a_u_shaped_maze_are_learned_in_few_updates(place):
    """The sheet's check: 90% of the tests within 1,000 updates. Each needs more than one of the ways."""
    import gcbc

    make("stitching-umaze-v0", steps=20_000)
    args: dict[str, Any] = {"dataset": "local/stitching-umaze-v0", "seeds": ("0:2",), "total_steps": 400}
    args |= {"anchors": "trajectories", "goal": "position", "loss": "mse", "lr": 1e-3, "max_norm": 0.25}
    args |= {"hidden": (256, 256), "batch_size": 256, "eval_every": 400, "eval_episodes": 5}
    gcbc.main(gcbc.Args(**args, compile=False, threads=1, device="cpu", quiet=True, out=place))
    table = pd.read_parquet(place / "local-stitching-umaze-v0" / "gcbc" / "default" / "eval.parquet")
    success = table.groupby("step")["success"].mean()
    assert success[0] < 0.1 and success[400] >= 0.9


def train_in_this_process(command, **_):
    """Stands for `subprocess.run` of a script: command is the interpreter, the script and its arguments."""
    import sac

    assert command[:2] == [sys.executable, str(collect.ROOT / "single_file" / "sac.py")]
    sac.main(tyro.cli(sac.Args, args=command[2:]))
    return subprocess.CompletedProcess(command, 0)


@pytest.mark.parametrize("in_this_process", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_policy_goes_from_a_run_to_a_dataset(place, monkeypatch, capsys, in_this_process):
    import sac

    if in_this_process:
        monkeypatch.setattr(collect, "subprocess", SimpleNamespace(run=train_in_this_process))

    args = {"env_id": "Hopper-v5", "seeds": ("3", "5"), "total_steps": 120, "learning_starts": 60, "eval_every": 80}
    args |= {"eval_episodes": 2, "quiet": True, "threads": 1, "device": "cpu"}
    args |= {"hidden": (8, 8), "batch_size": 8}
    sac.main(sac.Args(**args, out=place / "runs", keep_replay=True))
    shutil.copytree(recipes_of.POLICIES, place / "policies")
    for where in (policies, recipes_of):
        monkeypatch.setattr(where, "POLICIES", place / "policies")
    run = place / "runs" / "Hopper-v5" / "sac" / "default"
    table = pd.read_parquet(run / "eval.parquet")
    table["return"] = 1000.0 * table["seed"] + table["step"] + table["episode"]
    table.to_parquet(run / "eval.parquet", index=False, write_page_checksum=True)
    policies.main(policies.Args(run, "hopper-medium", seed=5))
    training = Policy(place / "policies" / "hopper-medium.safetensors").training
    assert (training["seed"], training["run"], training["steps"]) == (5, 1, 120)
    assert (training["return"], training["return_at"], training["episodes"]) == (5120.5, 120, 2)
    assert "hopper-medium: return 5,120.5 after 120 steps" in capsys.readouterr().out
    names = [run / "checkpoint" / f"{step:012d}.safetensors" for step in (100, 120)]
    kept = {name: tensor / 2 for name, tensor in load_file(names[1]).items()}
    save_file(kept, names[0])  # as if it were of step 100, after the evaluation at 80
    shutil.copy(names[1].with_suffix(".json"), names[0].with_suffix(".json"))
    policies.main(policies.Args(run, "hopper-expert", step=100))
    earlier = Policy(place / "policies" / "hopper-expert.safetensors")
    assert [earlier.training[name] for name in ("seed", "run", "steps", "return_at")] == [3, 0, 100, 80]
    assert earlier.training["return"] == 3080.5 and earlier.training["command"].endswith("--total-steps 100")
    assert earlier.tensors["weight.0"].equal(kept["agent/actor.net.hidden.0.0.weight"][0])
    with pytest.raises(UserError, match="has such a seed and checkpoint"):
        policies.main(policies.Args(run, "hopper-expert", step=80))
    assert training["command"].startswith("python single_file/sac.py --env-id Hopper-v5 --seeds 3 5")
    make("hopper-medium-v0", steps=50)
    recipe = json.loads(minari.load_dataset("local/hopper-medium-v0").storage.metadata["description"])
    assert recipe["policies"]["hopper-medium"]["seed"] == 5
    assert "--hidden 8 8" in training["command"] and "--learning-starts 60" in training["command"]
    make("hopper-medium-replay-v0", steps=120)  # trains again
    data = load("local/hopper-medium-replay-v0")
    rows = load_file(names[1])["replay/rows.1"]
    assert data.obs[data.index].equal(rows[:, :11]) and data.obs[data.index + 1].equal(rows[:, 15:26])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"names": ("hopper-good-v0",)}, "there is no recipe 'hopper-good-v0'; the closest names are hopper"),
        ({"seed": -1}, "--seed must be at least 0"),
        ({"npz": "x"}, "only recipes of OGBench's mazes"),
        ({"names": ("halfcheetah-medium-replay-v0",), "seed": 1}, "has the seed of its policy"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(overrides, message, tmp_path):
    from pathlib import Path

    if "npz" in overrides:
        overrides = {"npz": Path(tmp_path / "x")}
    names = overrides.pop("names", ("hopper-random-v0",))
    with pytest.raises(UserError, match=message) as error:
        make(*names, **overrides)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "minari" / "local").exists()


def test_a_dataset_is_replaced_only_on_demand():
    make("hopper-random-v0")
    first = load("local/hopper-random-v0").digest
    with pytest.raises(UserError, match="is there already"):
        make("hopper-random-v0", seed=1)
    assert load("local/hopper-random-v0").digest == first
    make("hopper-random-v0", seed=1, overwrite=True)
    assert load("local/hopper-random-v0").digest != first


def test_files_are_replaced_only_on_demand_and_written_from_what_is_there(place, monkeypatch):
    make("hopper-random-v0")
    monkeypatch.setattr(collect, "gather", None)  # nothing is made anew
    make("hopper-random-v0", d4rl=place)
    same(load("local/hopper-random-v0"), load(str(place / "hopper-random-v0.hdf5")))
    with pytest.raises(UserError, match=r"--d4rl: .*hopper-random-v0\.hdf5 is there already"):
        make("hopper-random-v0", d4rl=place)
    with pytest.raises(UserError, match="local/hopper-random-v0 is there already"):  # made with another seed
        make("hopper-random-v0", d4rl=place / "other", seed=1)


def test_a_policy_is_taken_from_sac_on_its_task_only(place):
    import dsac_t

    args = {"env_id": "Hopper-v5", "total_steps": 20, "learning_starts": 10, "eval_episodes": 1, "hidden": (8,)}
    args |= {"quiet": True, "threads": 1, "device": "cpu", "batch_size": 4, "buffer_size": 100, "eval_every": 10}
    dsac_t.main(dsac_t.Args(**{k: v for k, v in args.items() if hasattr(dsac_t.Args, k)}, out=place))
    run = place / "Hopper-v5" / "dsac_t" / "default"
    with pytest.raises(UserError, match="it is dsac_t on Hopper-v5"):
        policies.main(policies.Args(run, "hopper-medium"))
    with pytest.raises(UserError, match="--name must be a task and a quality"):
        policies.main(policies.Args(run, "../hopper-medium"))
    shutil.rmtree(run / "checkpoint")
    with pytest.raises(UserError, match="has no checkpoint yet"):
        policies.main(policies.Args(run, "hopper-medium"))
    with pytest.raises(UserError, match="there is no run in"):
        policies.main(policies.Args(place, "hopper-medium"))


def test_nothing_is_left_of_a_dataset_that_was_not_finished(place, monkeypatch):
    monkeypatch.setattr(minari, "create_dataset_from_buffers", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        make("hopper-random-v0")
    assert not list((place / "minari").iterdir())


def test_a_card_says_what_is_in_a_dataset(place, capsys):
    make("hopper-random-v0")
    dataset.main(dataset.Args("local/hopper-random-v0", out=place / "cards"))
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    data = load("local/hopper-random-v0")
    assert lines["transitions"].startswith("300, 11 observations, 3 actions")
    assert lines["returns"].startswith(f"mean {data.returns().mean():,.1f}")
    assert lines["SHA-256"] == data.digest
    assert "a random policy's 16.2 scores 0 and our expert's 3,392.8 scores 100" in lines["own"]
    assert (place / "cards" / "local-hopper-random-v0.png").stat().st_size > 10_000


def test_the_command_says_errors_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["collect", "nothing"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(collect.__file__, run_name="__main__")
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.startswith("error: there is no recipe 'nothing'") and said.count("\n") == 1


@pytest.mark.parametrize("method", ["iql", "td3_bc"])
def test_the_peer_learns_from_the_same_data_and_stores_the_same_tables(tmp_path, method):
    pytest.importorskip("d3rlpy")
    make("hopper-random-v0")
    short = {"dataset": "local/hopper-random-v0", "total_steps": 2, "eval_every": 1, "eval_episodes": 1}
    d3rlpy_peer.main(d3rlpy_peer.Args(method=method, seeds=("3", "5"), out=tmp_path / "peer", **short))
    loaded = load_scores.load([tmp_path / "peer"])
    assert loaded.table.groupby("seed")["step"].apply(list).to_dict() == {3: [0, 1, 2], 5: [0, 1, 2]}
    assert loaded.sources[0]["status"] == "finished" and loaded.sources[0]["facts"]["digest"]
    assert loaded.sources[0]["algorithm"] == f"d3rlpy_{method}"
    with pytest.raises(UserError, match="negative"):
        d3rlpy_peer.main(d3rlpy_peer.Args(method=method, seeds=("-1",), **short))


@pytest.mark.parametrize("method", ["iql", "td3_bc"])
def test_the_peer_learns_from_actions_rewards_and_observations_as_the_script_does(method):
    pytest.importorskip("d3rlpy")
    make("hopper-random-v0")
    data = load("local/hopper-random-v0")
    learner, buffer = d3rlpy_peer.learner_and_buffer(method, data, 0)
    batch = buffer.sample_transition_batch(64)
    rows = torch.cat([data.obs[data.index], data.action[data.index], data.reward[data.index, None]], -1)
    drawn = torch.from_numpy(np.concatenate([batch.observations, batch.actions, batch.rewards], 1))
    assert torch.cdist(drawn.double(), rows.double()).amin(1).max() < 1e-5
    scaler = learner.config.observation_scaler
    assert (scaler is None) == (method == "iql")
    if scaler:
        data.standardise()
        mean, scale = (part.numpy() for part in data.obs_scaling)
        assert (np.abs(scaler.mean - mean) < 0.05 * scale).all()  # it leaves out the last rows of cut episodes
        np.testing.assert_allclose(scaler.std + scaler.eps, scale, rtol=0.05)


def test_a_folder_that_cannot_be_written_to_is_refused_before_any_data_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "make", lambda *_: pytest.fail("data was made"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        with pytest.raises(UserError, match=r"MINARI_DATASETS_PATH: .*minari is not a folder that can be written to"):
            make("hopper-random-v0")
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "file" / "minari"))
    with pytest.raises(UserError, match=r"^MINARI_DATASETS_PATH: .*Not a directory.*file"):
        make("hopper-random-v0")
