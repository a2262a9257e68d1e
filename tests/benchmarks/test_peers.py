"""What peers learn from, and what their runs leave."""

import importlib
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from dataset_files import npz, ogbench_arrays, trajectories

from algos.data import load
from algos.errors import UserError
from algos.goals import Goals
from benchmarks import peer_run, sb3
from benchmarks.load_scores import load as load_runs
from benchmarks.offlinerl_kit import suggested
from benchmarks.ogbench_peer import ALPHAS, PLACES, compact


def test_ogbench_learns_from_the_same_states_actions_and_ends_of_episodes(tmp_path):
    data = load(npz(tmp_path / "data.npz", ogbench_arrays(trajectories(4, 1, 3, ends="timeout"))))
    rows = compact(data)
    assert rows["terminals"].tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1]
    assert rows["valids"].tolist() == [1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 0]
    goals, valid = Goals(data), np.flatnonzero(rows["valids"])
    everything = data.gather(torch.arange(len(data)))
    np.testing.assert_array_equal(rows["observations"][valid], everything.obs)
    np.testing.assert_array_equal(rows["observations"][valid + 1], everything.next_obs)
    np.testing.assert_array_equal(rows["actions"][valid], everything.action)
    last = [np.flatnonzero(rows["terminals"][i:])[0] + i for i in valid]  # final(i): the first row from i on with a 1
    np.testing.assert_array_equal(rows["observations"][last], data.obs[goals.last(data.index)])


@pytest.mark.parametrize("place", PLACES)
def test_ogbench_gets_the_alphas_of_our_defaults(place):
    for method, alpha in ALPHAS.items():
        assert importlib.import_module(f"single_file.{method}").Args(dataset=f"local/{place}-v0").alpha == alpha


def test_a_run_of_a_peer_is_read_like_others(tmp_path):
    rows = [(seed, step, episode, 10.0 * seed + step, 5) for seed in (0, 1) for step in (0, 4) for episode in (0, 1)]
    folder = tmp_path / "Hopper-v5" / "peer" / "default"
    folder.mkdir(parents=True)
    args = {"total_steps": 4, "eval_every": 4, "eval_episodes": 2, "out": tmp_path}
    peer_run.store(folder, "peer", args, rows, [], finished=True, env_id="Hopper-v5")
    scores = load_runs([tmp_path])
    assert scores.table.query("step == 4")["return"].tolist() == [4.0, 14.0]
    assert scores.sources[0]["status"] == "finished" and scores.sources[0]["versions"]["torch"]
    assert list(pd.read_parquet(folder / "eval.parquet").columns) == list(peer_run.COLUMNS)


def test_hyperparameters_that_offlinerl_kit_suggests():
    assert suggested("local/walker2d-medium-replay-v0") == (1, 2.5)
    assert suggested("d4rl/halfcheetah-medium-v2") == (5, 0.5)
    with pytest.raises(UserError, match="got local/hopper-random-v0"):
        suggested("local/hopper-random-v0")


def test_sb3_is_evaluated_at_the_last_step_and_finishes_with_the_last_seed(tmp_path, monkeypatch):
    class Model(SimpleNamespace):
        def learn(self, steps, reset_num_timesteps):
            self.num_timesteps += steps

    stored = []

    def store(folder, *given, **facts):
        peer_run.store(folder, *given[:3], [], *given[4:], **facts)
        stored.append(json.loads((folder / "config.json").read_text())["status"])

    monkeypatch.setattr(sb3.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(sb3, "make_model", lambda args, seed: Model(num_timesteps=0))
    monkeypatch.setattr(sb3, "evaluate", lambda model, env_id, seed, episodes: [(float(model.num_timesteps), 5)])
    monkeypatch.setattr(sb3, "store", store)
    threads = torch.get_num_threads()
    sb3.main(sb3.Args("sac", "Pendulum-v1", ("0:2",), total_steps=10, eval_every=4, threads=threads, out=tmp_path))
    (path,) = tmp_path.rglob("eval.parquet")
    rows = pd.read_parquet(path)
    assert rows["seed"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert rows["step"].tolist() == rows["return"].tolist() == [0, 4, 8, 10] * 2
    assert stored == ["running", "finished"]
