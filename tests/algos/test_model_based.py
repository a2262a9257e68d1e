"""Batches, rollouts and diagnostics of model-based scripts, through whole short runs."""

import math
import statistics
import sys
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from offline_data import at_random
from safetensors.torch import load_file
from scripts import EVALUATED, differing, module_of, same, short, state_of

import algos.model_based
from algos import model_watch
from algos.adapted import Adapted
from algos.data import Dataset
from algos.dynamics import Ensemble, Settings, Training
from algos.errors import UserError
from algos.model_based import ModelData
from algos.model_watch import Comparison
from algos.models import Prediction
from algos.policy import PolicyFile
from algos.random import Random
from algos.run import Run
from algos.terminations import termination
from benchmarks.recipes.locomotion import rollouts

SHORT = {"seeds": ("0", "1"), "total_steps": 10, "log_every": 5, "rollouts": 40, "rollout_length": 3}


def metric(result, name):
    """The values of a metric, by step and seed."""
    table = pd.read_parquet(result.folder / "train.parquet")
    return table[table["metric"] == name].pivot(index="step", columns="seed", values="value")


@pytest.fixture
def sources(monkeypatch):
    """The sources of batches that scripts make."""
    made = []
    begin = ModelData.__init__

    def init(source, *args, **choices):
        begin(source, *args, **choices)
        made.append(source)

    monkeypatch.setattr(ModelData, "__init__", init)
    return made


def test_rollouts_store_the_penalised_reward_of_all_members(train_short, sources):
    """The ring holds steps that lead on from states of the dataset, with r - lambda u over all members."""
    train_short("mopo", **SHORT | {"seeds": ("0",), "members": 4, "elites": 1, "penalty_weight": 0.7})
    (source,) = sources
    assert source.learned.ensemble.net.out.weight.shape[1] == 4
    assert source.buffer.count.tolist() == [2 * 40 * 3]
    batch = source.buffer.gather(torch.arange(240)[None])
    starts = {tuple(row) for row in source.data.obs[source.data.index].tolist()}
    places = [tuple(row) in starts for row in batch.obs[0].tolist()]
    assert places[:40] == [True] * 40 and not any(places[40:120]) and places[120:160] == [True] * 40
    assert torch.equal(batch.obs[0, 40:80], batch.next_obs[0, :40])
    trained = source.training.trained()
    mean, log_var = trained(batch.obs, batch.action)
    doubt = (log_var / 2).exp().norm(dim=-1).amax(1)
    # the mean and the noise of the one elite: the reward less the penalty is within a few deviations
    noise = (batch.reward + 0.7 * doubt - mean[:, 0, :, -1]) / (log_var[:, 0, :, -1] / 2).exp()
    assert noise.abs().max() < 5 and abs(noise.mean()) < 0.3 and abs(noise.std() - 1) < 0.2
    source.generate()  # by the policy that is left: actions are drawn
    assert source.buffer.count.tolist() == [3 * 40 * 3]
    latest = source.buffer.gather(torch.arange(240, 360)[None])
    assert (latest.action - source.agent.policy(latest.obs)).abs().mean() > 0.2


@pytest.mark.parametrize("piece", [40, 16])
def test_the_share_of_last_steps_is_that_of_all_rollouts(train_short, sources, monkeypatch, piece):
    monkeypatch.setattr(algos.model_based, "PIECE", piece)
    result = train_short("ravl", **SHORT)
    assert (metric(result, "last_step_share").dropna() - 1 / 3).abs().max().max() < 1e-6
    assert sources[0].buffer.count.tolist() == [2 * 40 * 3] * 2


def falls(obs):
    """A rule of one's own: about half of all states end an episode."""
    return obs[..., 0] > 0


def test_rollouts_end_where_the_rule_says(train_short, sources, monkeypatch):
    monkeypatch.setitem(sys.modules, "own_rules", sys.modules[__name__])
    result = train_short("ravl", **SHORT | {"never_terminates": False, "terminates": "own_rules:falls"})
    (source,) = sources
    share = metric(result, "last_step_share").dropna().to_numpy()
    assert (share < 0.3).all() and (source.buffer.count < 2 * 40 * 3).all()
    for run in range(2):
        held = int(source.buffer.count[run])
        batch = source.buffer.gather(torch.arange(held).expand(2, -1))
        assert torch.equal(batch.terminated[run].bool(), falls(batch.next_obs[run]))
        assert batch.terminated[run].any()


def test_a_batch_has_the_datasets_rows_first(train_short, sources, monkeypatch):
    seen = []
    gather = ModelData.gather
    monkeypatch.setattr(ModelData, "gather", lambda source, chosen: seen.append(gather(source, chosen)) or seen[-1])
    train_short("ravl", **SHORT | {"real_ratio": 0.25})
    starts = {tuple(row) for row in sources[0].data.obs[sources[0].data.index].tolist()}
    for batch in seen:
        real = [tuple(row) in starts for row in batch.obs[0].tolist()]
        assert len(real) == 16 and all(real[:4]) and not all(real[4:])


@pytest.mark.parametrize(("script", "ratio"), [("mopo", 0.0), ("mopo", 1.0), ("mobile", 0.0)])
def test_a_batch_may_come_from_one_source_alone(train_short, sources, script, ratio):
    result = train_short(script, **SHORT | {"real_ratio": ratio})
    assert result.code == 0 and sources[0].real == 16 * ratio
    assert (result.folder / "dynamics.safetensors").exists() == (ratio == 0)
    assert len(metric(result, "policy_value"))


def test_a_run_keeps_its_ensembles_and_another_takes_them(train_short, sources):
    first = train_short("mopo", **SHORT, out="first")
    file = first.folder / "dynamics.safetensors"
    table = pd.read_csv(first.folder / "dynamics.csv")
    assert set(table["seed"]) == {0, 1} and len(table) == 2 * 3 * 5
    assert list(table.columns) == ["seed", "member", "elite", "output", "error", "inside_50", "inside_90"]
    second = train_short("mopo", **SHORT, out="second", dynamics=str(file))
    assert not any(same(a, b) is False for a, b in zip(first.agent.values(), second.agent.values(), strict=True))
    part = train_short("ravl", **SHORT | {"seeds": ("1",)}, out="part", dynamics=str(file))
    ensemble, trained = sources[-1].learned.ensemble, load_file(file)
    assert isinstance(ensemble, Ensemble) and part.code == 0
    assert torch.equal(ensemble.net.out.weight[0], trained["net.out.weight"][1, :2])  # the elites of seed 1


@pytest.mark.parametrize("mix", [{}, {"model_mix": 0.5, "mix_with": "random"}])
def test_ensembles_are_in_bfloat16_where_the_agent_is(train_short, sources, monkeypatch, mix):
    """While they learn and when they predict, and so is a random one."""
    monkeypatch.setattr("algos.run.Run.compiled", lambda self, function: function)  # compiling takes half a minute
    monkeypatch.setattr("algos.run.multiplies_bf16", lambda: True)
    widths = {"hidden": (64, 64), "dynamics_hidden": (64, 64)}
    for bf16 in (True, False):
        assert train_short("mopo", **SHORT | widths | mix, compile=bf16, bf16=bf16, out=f"{bf16}").code == 0
        model = sources[-1].model
        predicting = [model.learned, model.other] if mix else [model]
        for ensemble in (sources[-1].training.ensemble, *(part.ensemble for part in predicting)):
            assert [block[0].bf16 for block in ensemble.net.hidden] == [False, bf16]


def test_the_smaller_last_batch_of_an_epoch_is_not_compiled_by_itself(train_short, monkeypatch):
    sizes: dict[str, set[int]] = {"compiled": set(), "all": set()}
    update, compiled = Training.update, Run.compiled

    def noted(self, rows, active=None):
        sizes["all"].add(rows.shape[-1])
        return update(self, rows, active)

    def noting(self, function):
        if getattr(function, "__name__", "") != "noted":
            return compiled(self, function)

        def call(rows, active=None):
            sizes["compiled"].add(rows.shape[-1])
            return function(rows, active)

        return call

    monkeypatch.setattr(Training, "update", noted)
    monkeypatch.setattr(Run, "compiled", noting)
    assert train_short("mopo", **SHORT, dynamics_batch_size=50).code == 0
    assert sizes["compiled"] == {50} < sizes["all"] and len(sizes["all"]) == 2


def test_settings_of_a_seed_share_its_ensemble(train_short, sources):
    train_short("mopo", **SHORT | {"vary": ("penalty_weight=0,1",)})
    (source,) = sources
    assert source.training.runs == 2 and source.learned.ensemble.runs == 4
    weight = source.learned.ensemble.net.out.weight
    assert torch.equal(weight[:2], weight[2:]) and not torch.equal(weight[0], weight[1])


def test_exploding_values_are_told_once_and_others_are_not(train_short, capsys, monkeypatch):
    train_short("mopo", **SHORT, out="calm")
    assert "explode" not in capsys.readouterr().err
    agent = module_of("mopo").MOPO
    monkeypatch.setattr(agent, "policy_values", lambda self, obs: torch.full((2, 2, obs.shape[1]), 1e6))
    train_short("mopo", **SHORT, out="wild")
    errors = capsys.readouterr().err
    assert errors.count("values of seed 0 explode: they are 1,000,000") == 1 == errors.count("values of seed 1 explode")


class Known:
    """An agent and a model by hand, of two runs: each step adds 1 to an observation [height, place, steps done].

    An episode ends above height 1, and in run 1 after every step. The penalty is 1 at the first step, 3 at the second.
    """

    on_host = False

    def __init__(self):
        self.valued = []  # observations that critics were asked for

    def act(self, obs, noise):
        return noise

    def penalty(self, prediction):
        return prediction.std[:, 0, :, 0]

    def policy_values(self, obs):
        self.valued.append(obs)
        return torch.stack([obs[..., 1], -2 * obs[..., 1], 3 + obs[..., 0]], 1)

    def start(self, index):
        pass

    def step(self, obs, action, alive, draws):
        done = (obs[..., 0] + 1 > 1) | torch.tensor([[False], [True]])
        return Prediction(obs + 1, torch.ones_like(obs[..., 0]), done, (1 + 2 * obs[..., 2:])[:, None])


def test_what_is_watched_follows_from_the_critics_and_the_penalties():
    """policy_value, the spreads at the first and the last states of rollouts, and the mean penalty, by plain sums."""
    rng, logged, known = np.random.default_rng(0), {}, Known()
    obs = np.stack([*rng.standard_normal((2, 64)), np.zeros(64)], 1)
    data = Dataset.of(obs, np.zeros((64, 2)), np.zeros(64), obs + 1, np.zeros(64))
    given = module_of("mopo").Args(**short("mopo", rollouts=30, rollout_length=2))
    run = SimpleNamespace(
        given=given, args=given, seeds=[3, 7], runs=2, device=torch.device("cpu"), random=Random([3, 7]),
        log=logged.update, compiled=lambda function: function, name_of=str, in_bf16=False,
    )  # fmt: skip
    source = ModelData(run, data, known, known.penalty)
    source.use(known)
    source.generate()
    first, last = known.valued
    assert first.shape == (2, 256, 3) and last.shape == (2, 30, 3)
    for r in range(2):
        values = [(y, -2 * y, 3 + x) for x, y, _ in first[r].tolist()]
        assert logged["policy_value"][r].item() == pytest.approx(statistics.fmean(map(min, values)), abs=1e-5)
        spreads = map(statistics.stdev, values)
        assert logged["spread_start"][r].item() == pytest.approx(statistics.fmean(spreads), abs=1e-5)
        reached = [(x, y) for x, y, steps in last[r].tolist() if steps == 2 and x <= 1]
        assert bool(reached) == (r == 0) and len(reached) < 30
        counted = reached or [(x, y) for x, y, _ in last[r].tolist()]  # all, where no rollout came so far
        spreads = [statistics.stdev((y, -2 * y, 3 + x)) for x, y in counted]
        assert logged["spread_last"][r].item() == pytest.approx(statistics.fmean(spreads), abs=1e-5)
        second = int(source.buffer.count[r]) - 30  # rollouts that made a second step
        assert 0 < second < 30 if r == 0 else second == 0
        assert logged["penalty"][r].item() == pytest.approx((30 + 3 * second) / (30 + second))
    held = source.buffer.gather(torch.arange(30).expand(2, -1))
    assert held.reward.eq(0).all() and first[:, :, 2].eq(0).all()  # 1 less the first penalty, in states of the dataset


@pytest.mark.parametrize(("script", "entropy"), [("mopo", math.log(2) / 0.01), ("mobile", 0.0)])
def test_values_explode_above_a_threshold(train_short, tmp_path, capsys, monkeypatch, script, entropy):
    """It is r_max / (1 - gamma) + max |r| + A log 2 / (1 - gamma), with A = 1; without entropy in MOBILE's values."""
    with h5py.File(tmp_path / "data.hdf5", "r+") as file:
        rewards = file["rewards"][:]
        rewards[:2] = 5.0, -7.0
        file["rewards"][:] = rewards
    threshold = 5 / 0.01 + 7 + entropy
    agent = getattr(module_of(script), script.upper())
    for value, explodes in ((threshold - 0.1, False), (threshold + 0.1, True)):
        monkeypatch.setattr(agent, "policy_values", lambda self, obs, v=value: torch.full((2, 2, obs.shape[1]), v))
        result = train_short(script, **SHORT, out=f"{explodes}")
        assert ("explode" in capsys.readouterr().err) == explodes
        assert metric(result, "value_bound").to_numpy() == pytest.approx(500)


def test_values_of_mobile_have_no_room_for_entropy(train_short, sources):
    """Its targets have no entropy term, so that the rewards alone bound them; MOPO has A log 2 / (1 - gamma) more."""
    for script in ("mobile", "mopo"):
        train_short(script, **SHORT)
    mobile, mopo = sources
    step = float(mobile.data.reward[mobile.data.index].abs().max())
    torch.testing.assert_close(mobile.watch.room, torch.full((2,), step))
    torch.testing.assert_close(mopo.watch.room, torch.full((2,), step + mopo.data.act_size * math.log(2) / 0.01))


def test_the_ensemble_has_a_clock_progress_and_lines_of_its_own(train_short, capsys, monkeypatch):
    told = []
    monkeypatch.setattr("algos.run.write_progress", lambda folder, progress: told.append(progress))
    monkeypatch.setattr("algos.model_based.SAID", 1)
    monkeypatch.setattr(Run, "reported", property(lambda run: -math.inf, lambda run, now: None), raising=False)
    result = train_short("mopo", **SHORT, quiet=False)
    assert result.config["phase_seconds"] > 0 and result.config["seconds"] > 0
    clocks = metric(result, "dynamics/seconds"), metric(result, "seconds")
    assert clocks[0].max().max() <= result.config["phase_seconds"] + 1e-3
    assert clocks[1].max().max() <= result.config["seconds"] + 1e-3
    assert told[0]["phase"] == "dynamics, iteration 1" and told[-1]["phase"] == "" and told[-1]["step"] == 10
    assert "ensemble epoch      1  holdout error " in capsys.readouterr().out


def test_a_broken_member_is_told_and_its_run_marked(train_short, capsys, monkeypatch):
    """Members share the bounds of their variances, so that all of a run's break; each is told once."""
    initialise = algos.model_based.Training.__init__

    def broken(training, *args):
        initialise(training, *args)
        with torch.no_grad():
            training.ensemble.net.out.bias[1, 2] = math.nan

    monkeypatch.setattr(algos.model_based.Training, "__init__", broken)
    result = train_short("ravl", **SHORT)
    errors = capsys.readouterr().err
    told = [errors.count(f"member {member} of the ensemble of seed 1 diverged in epoch 1") for member in range(3)]
    assert told == [1, 1, 1] and errors.count("diverged in") == 3
    assert [row["seed"] for row in result.config["diverged"]] == [1]
    file = str(result.folder / "dynamics.safetensors")
    with pytest.raises(UserError, match="the ensemble of seed 1 diverged"):
        train_short("ravl", **SHORT, out="later", dynamics=file)
    assert train_short("ravl", **SHORT | {"seeds": ("0",)}, out="other", dynamics=file).code == 0


@pytest.mark.parametrize("script", ["mopo", "mobile", "ravl"])
def test_a_run_in_a_grid_of_seeds_and_settings_is_that_run_alone_through_whole_runs(script, train_short, float64):
    """From the ensemble to the last update, rollouts included."""
    overrides = SHORT | {"total_steps": 12}
    grid = train_short(script, **overrides | {"seeds": ("3", "7")}, out="grid", vary=("discount=0.9,0.99",)).agent
    for number, discount in enumerate((0.9, 0.99)):
        alone = train_short(script, **overrides | {"seeds": ("7",)}, out=f"{number}", discount=discount).agent
        for name, tensor in grid.items():
            ours = tensor[2 * number + 1 : 2 * number + 2] if tensor.dim() else tensor
            torch.testing.assert_close(ours, alone[name].expand_as(ours), atol=1e-9, rtol=0, msg=name)


def test_the_ensemble_of_a_seed_that_stops_early_stands_still_while_others_go_on(train_short, monkeypatch):
    """That of seed 0 never improves after the first epoch, so that it stops after the sixth."""
    states = []
    end_epoch = Training.end_epoch

    def errors(training, ensemble):
        error = torch.tensor([1.0, 0.9 ** len(states)]).view(2, 1, 1)
        return error.expand(-1, training.args.members, training.data.obs_size + 1)

    def ended(training, epoch):
        found = end_epoch(training, epoch)
        stands = training.stopped.tolist()
        learned = ("ensemble.", "adam.")
        states.append((stands, {n: t for n, t in state_of(training).items() if n.startswith(learned)}))
        return found

    monkeypatch.setattr(Training, "errors", errors)
    monkeypatch.setattr(Training, "end_epoch", ended)
    assert train_short("mopo", **SHORT, dynamics_epochs=8).code == 0
    assert [stands for stands, _ in states] == [[False, False]] * 5 + [[True, False]] * 3
    names = set(states[0][1]) - {"ensemble.mean", "ensemble.std"}
    for (_, before), (_, after) in pairwise(states[5:]):
        assert not [name for name in names if not same(before[name][0], after[name][0])]
        assert all(not same(before[name][1], after[name][1]) for name in names)
    assert not same(states[4][1]["ensemble.net.out.weight"][0], states[5][1]["ensemble.net.out.weight"][0])


def assert_same_end(whole, result):
    """Both runs have the same parameters and the same log, bit for bit."""
    assert set(whole.parameters) == set(result.parameters) and not differing(whole.parameters, result.parameters)
    ours, theirs = (
        frame.sort_values(["seed", "step", "metric"], ignore_index=True) for frame in (whole.log, result.log)
    )
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True)


@pytest.mark.parametrize("form", ["offlinerl_kit", "ravl"])
def test_a_kill_while_the_ensemble_learns_costs_nothing(form, train_short, monkeypatch):
    overrides = SHORT | {"dynamics_epochs": 4, "form": form}
    whole = train_short("mopo", **overrides, out="whole")
    pause, count = Run._pause, [0]

    def killed(run, checkpoint):
        pause(run, True)
        count[0] += 1
        if count[0] == 7:  # within the second epoch
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_pause", killed)
        with pytest.raises(KeyboardInterrupt):
            train_short("mopo", **overrides, out="broken", resume=True)
    result = train_short("mopo", **overrides, out="broken", resume=True)
    assert_same_end(whole, result)


def test_a_finished_run_stays_as_it_is(train_short):
    first = train_short("mopo", **SHORT)
    before = (first.folder / "dynamics.safetensors").read_bytes()
    again = train_short("mopo", **SHORT, resume=True)
    assert again.code == 0 and (again.folder / "dynamics.safetensors").read_bytes() == before


def test_a_kill_at_the_very_end_leaves_the_ensembles(train_short, monkeypatch):
    """The final checkpoint has the agent alone; a resumed run must not write untrained ensembles."""

    def killed(run, status):
        if status == "finished":
            raise KeyboardInterrupt
        write(run, status)

    write = Run._write_config
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_write_config", killed)
        with pytest.raises(KeyboardInterrupt):
            train_short("mopo", **SHORT)
    result = train_short("mopo", **SHORT, resume=True, out="other")
    kept = (result.folder.parents[3] / "out").rglob("dynamics.safetensors")
    before = {path: path.read_bytes() for path in kept}
    again = train_short("mopo", **SHORT, resume=True)
    assert again.config["status"] == "finished" and before
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.fixture
def hopper(tmp_path):
    """A file of Hopper's data with the simulator's states."""
    import h5py

    episodes = list(rollouts("Hopper-v5", None, "test", 0, 400))
    path = tmp_path / "hopper.hdf5"
    with h5py.File(path, "w") as file:
        for name, part in (("observations", slice(None, -1)), ("next_observations", slice(1, None))):
            file[name] = np.concatenate([e.obs[part] for e in episodes])
        for name, key in (("actions", "action"), ("rewards", "reward"), ("terminals", "terminated")):
            file[name] = np.concatenate([getattr(e, key) for e in episodes])
        file["timeouts"] = np.concatenate([e.truncated for e in episodes])
        for name in ("qpos", "qvel"):
            file[f"infos/{name}"] = np.concatenate([e.infos[name] for e in episodes])
    return {"dataset": str(path), "env_id": "Hopper-v5", "never_terminates": False}


@pytest.mark.parametrize("standardise", [False, True])
def test_true_dynamics_fill_the_buffer_with_true_steps(train_short, sources, hopper, standardise):
    result = train_short("mopo", **SHORT | hopper | {"dynamics": "true", "standardise": standardise})
    (source,) = sources
    assert not (result.folder / "dynamics.safetensors").exists() and source.buffer.count.min() > 150
    assert (metric(result, "penalty").dropna() == 0).all().all()
    batch, data = source.buffer.gather(torch.arange(40).expand(2, -1)), source.data
    simulator = source.simulated.simulator
    states = simulator.states_of(data.raw_obs(batch.obs[0]).double().numpy())
    exact = simulator.is_exact(states[:, 1:])
    _, obs, reward, ended = simulator.step(states, data.raw_action(batch.action[0]).double().numpy())
    assert np.abs(obs - data.raw_obs(batch.next_obs[0]).numpy())[exact].max() < 1e-3
    assert np.abs(reward - batch.reward[0].numpy())[exact].max() < 1e-3 and exact.sum() > 20
    assert (ended == batch.terminated[0].numpy())[exact].all()


@pytest.mark.parametrize("script", ["mobile", "ravl"])
def test_other_scripts_learn_from_true_dynamics_too(train_short, sources, hopper, script):
    """Without an ensemble there is no doubt, and nothing to guess."""
    result = train_short(script, **SHORT | hopper | {"dynamics": "true"})
    (source,) = sources
    assert source.buffer.count.min() > 150 and not (result.folder / "dynamics.safetensors").exists()
    assert metric(result, "critic_loss").notna().any().all()
    if script == "mobile":
        assert (metric(result, "penalty").dropna() == 0).all().all()


@pytest.mark.parametrize(
    "model",
    [{"dynamics": "true"}, {"model_mix": 0.5}, {"model_mix": 0.5, "mix_with": "random"}],
    ids=["true", "mixed with true", "mixed with random"],
)
def test_a_kill_costs_nothing_where_the_model_is_not_the_ensemble_alone(train_short, hopper, killed_at, model):
    """The kill comes between two epochs, after which batches hold rollouts from before it."""
    overrides = SHORT | hopper | model | {"total_steps": 12, "checkpoint_every": 3, "log_every": 3}
    whole = train_short("mopo", **overrides, out="whole")
    with killed_at(8):
        train_short("mopo", **overrides, out="broken", resume=True)
    result = train_short("mopo", **overrides, out="broken", resume=True)
    assert_same_end(whole, result)


def test_the_ensemble_is_compared_with_the_simulator(train_short, hopper):
    result = train_short("mopo", **SHORT | hopper)
    errors = [metric(result, f"model_error_{step}").dropna().to_numpy() for step in (1, 2, 3)]
    assert all(len(error) and (error > 0).all() for error in errors) and errors[2].mean() > errors[0].mean()


def test_a_simulator_that_cannot_have_the_states_of_the_data_is_closed(monkeypatch):
    def without(*_):
        raise UserError("velocities are clipped")

    closed: list = []
    monkeypatch.setattr(model_watch, "simulator_for", lambda *_: SimpleNamespace(close=lambda: closed.append(True)))
    monkeypatch.setattr(model_watch, "Simulated", without)
    run = SimpleNamespace(given=SimpleNamespace(threads=4))
    assert model_watch.truth_of(run, None) is None and closed == [True]


@pytest.mark.parametrize(("script", "mix_with"), [("mopo", "true"), ("mopo", "random"), ("ravl", "random")])
def test_a_mixture_runs_without_errors_of_the_ensemble_alone(train_short, sources, hopper, script, mix_with):
    """They would not be those of the model."""
    result = train_short(script, **SHORT | hopper | {"model_mix": 0.5, "mix_with": mix_with})
    assert result.code == 0 and not result.log["metric"].str.startswith("model_error").any()
    if mix_with == "random":  # other weights, on inputs of the same statistics
        ours, other = sources[0].learned.ensemble, sources[0].model.other.ensemble
        assert (ours.net.out.weight[:, : other.net.out.weight.shape[1]] - other.net.out.weight).abs().mean() > 0.01
        assert torch.equal(ours.mean, other.mean) and torch.equal(ours.std, other.std)
        assert ours.mean.abs().min() > 0 and not (ours.std == 1).any()


def test_the_error_of_a_model_is_told_in_deviations_of_the_data_and_stays_where_a_rollout_ends():
    """Half a deviation of each number is added at each step; the first of two rollouts ends after one step."""
    logged: dict = {}
    deviation, start = torch.tensor([1.0, 2.0]), torch.zeros(1, 2, 2)
    never = torch.zeros(1, 2, dtype=torch.bool)

    def wrong(obs, action, alive, draws):
        return SimpleNamespace(next_obs=obs + deviation / 2, terminated=torch.tensor([[True, False]]))

    def true(obs, action, alive, draws):
        return SimpleNamespace(next_obs=obs, terminated=never)

    comparison = SimpleNamespace(
        data=SimpleNamespace(choose=lambda x: x, gather=lambda x: SimpleNamespace(obs=start)),
        draw=lambda: torch.zeros(1, 2, dtype=torch.int64),
        draws=(lambda: None,) * 3,
        agent=SimpleNamespace(act=lambda obs, draws: obs),
        deviation=deviation,
        run=SimpleNamespace(log=logged.update, given=SimpleNamespace(rollout_length=3)),
    )
    truth = SimpleNamespace(start=lambda index: None, step=true)
    Comparison.log(comparison, SimpleNamespace(step=wrong), truth)
    assert {name: error.tolist() for name, error in logged.items()} == {
        "model_error_1": [0.5],
        "model_error_2": [0.75],  # 0.5 and 1
        "model_error_3": [1.0],  # 0.5 and 1.5
    }


def test_deviations_of_the_data_are_those_of_the_states_before_its_transitions(monkeypatch):
    """They are taken over all pieces of the data; a number that never changes has a small one."""
    monkeypatch.setattr("algos.models.CHUNK", 10)
    data = at_random()
    data.obs[:, 1], data.obs[:, 2] = 5 * data.obs[:, 1] + 100, 3.0
    deviation = Comparison(SimpleNamespace(random=Random([0])), data, None).deviation
    expected = data.obs[data.index].double().std(0, correction=0).float()
    assert expected[2] == 0 and len(data) == 64 and deviation.dtype == data.rows.dtype
    torch.testing.assert_close(deviation, torch.tensor([expected[0], expected[1], 1e-6]))


def test_an_ensemble_of_data_prepared_in_another_way_is_refused(train_short, hopper):
    file = str(train_short("mopo", **SHORT | hopper).folder / "dynamics.safetensors")
    with pytest.raises(UserError, match="or was prepared in another way"):
        train_short("mopo", **SHORT | hopper | {"standardise": True}, out="other", dynamics=file)


def half(obs):
    """A rule that gives no truth values."""
    return obs[..., 0] / 2


def of_one_axis(obs):
    """A rule for observations [B, O] only."""
    return obs[:, 0] > 0


def test_an_id_with_its_module_has_the_rule_of_the_environment():
    for env_id, size in (("Hopper-v4", 11), ("AdroitHandPen-v1", 45)):
        assert termination(f"a.module:{env_id}", size, "ravl") is termination(env_id, size, "ravl")


@pytest.mark.parametrize(
    ("script", "given", "some", "others"),
    [
        ("mobile", {"dynamics": "true"}, {"guesses", "form", "dynamics_lr", "penalty_weight"}, {"rollouts"}),
        ("ravl", {"dynamics": "true"}, {"elites", "form", "dynamics_hidden"}, {"guesses", "penalty_weight"}),
        ("ravl", {"real_ratio": 1.0}, {"rollouts", "retain_epochs", "never_terminates", "form"}, {"eta"}),
        ("mopo", {"dynamics": "x.safetensors"}, {"dynamics_lr", "dynamics_epochs"}, {"members", "form"}),
        ("mopo", {}, set(), {"dynamics_lr", "rollouts", "penalty_weight"}),
    ],
)
def test_arguments_of_models_change_nothing_without_them(script, given, some, others):
    idle = set(module_of(script).Args(**given).without_effect())
    assert some <= idle and not others & idle


def test_other_bounds_of_health_are_refused():
    data = replace(at_random(), env_id="Hopper-v5", env_options={"terminate_when_unhealthy": False})
    with pytest.raises(UserError, match="was recorded with terminate_when_unhealthy, which the rule of Hopper-v5"):
        module_of("mopo").Args().termination(data)


def test_rules_of_ends_see_raw_observations():
    obs, zeros = np.zeros((4, 11)), np.zeros(4)
    mean, scale = torch.zeros(11), torch.ones(11)
    mean[0], scale[0] = 1.2, 0.1
    data = replace(Dataset.of(obs, np.zeros((4, 3)), zeros, obs, zeros), env_id="Hopper-v5", obs_scaling=(mean, scale))
    rule = module_of("mopo").Args().termination(data)
    assert rule(torch.tensor([[0.0] * 11, [-6.0] + [0.0] * 10])).tolist() == [False, True]  # heights 1.2 and 0.6


@pytest.mark.parametrize(("form", "ended"), [("offlinerl_kit", True), ("ravl", False)])
def test_the_form_decides_when_episodes_end(form, ended):
    """In RAVL's code, nothing ends an episode of HalfCheetah."""
    obs, zeros = np.zeros((4, 17)), np.zeros(4)
    data = replace(Dataset.of(obs, np.zeros((4, 6)), zeros, obs, zeros), env_id="HalfCheetah-v5")
    far = torch.zeros(2, 17)
    far[1, 3] = 200.0
    for script in ("mopo", "ravl"):
        assert module_of(script).Args(form=form).termination(data)(far).tolist() == [False, ended]


def test_arguments_reach_the_ensemble():
    flags = {"form": "ravl", "members": 4, "elites": 3, "dynamics_hidden": (5, 6), "dynamics_lr": 0.01}
    made = module_of("mopo").Args(**flags, dynamics_batch_size=7).ensemble
    assert made == Settings(form="ravl", members=4, elites=3, hidden=(5, 6), lr=0.01, batch_size=7)


def test_rollouts_are_kept_for_as_many_epochs_as_asked_for(train_short, sources):
    """With one, those of the last epoch only."""
    for epochs in (1, 2):
        train_short("mopo", **SHORT | {"retain_epochs": epochs, "never_terminates": True}, out=f"{epochs}")
        assert sources[-1].buffer.capacity == 40 * 3 * epochs


@pytest.mark.parametrize("script", ["mopo", "mobile", "ravl"])
def test_policies_are_evaluated_as_they_act_in_the_environment(script, train_short):
    """With raw observations, and actions within the task's bounds."""
    act = PolicyFile(train_short(script, **EVALUATED | {"standardise": True}).folder).policy().act
    assert isinstance(act, Adapted) and act.scaling("obs") is not None and act.scaling("action") is not None


def test_a_run_is_not_resumed_with_another_ensemble_in_the_file(train_short, tmp_path):
    for seeds, out in ((("0", "1"), "first"), (("0", "1", "2"), "second")):
        train_short("mopo", **SHORT | {"seeds": seeds}, out=out)
    first, second = (next((tmp_path / out).rglob("dynamics.safetensors")) for out in ("first", "second"))
    train_short("mopo", **SHORT, out="third", dynamics=str(first))
    first.write_bytes(second.read_bytes())
    with pytest.raises(UserError, match=r"another configuration \(dynamics_digest"):
        train_short("mopo", **SHORT, out="third", dynamics=str(first), resume=True)


def test_another_reward_for_health_changes_no_end():
    obs, zeros = np.zeros((4, 11)), np.zeros(4)
    data = replace(Dataset.of(obs, np.zeros((4, 3)), zeros, obs, zeros), env_id="Hopper-v5")
    rule = module_of("mopo").Args().termination(replace(data, env_options={"healthy_reward": 2.0}))
    assert rule(torch.tensor([[1.2] + [0.0] * 10, [0.6] + [0.0] * 10])).tolist() == [False, True]
    options = {"healthy_reward": 2.0, "healthy_z_range": [0.5, 3.0]}
    with pytest.raises(UserError, match="was recorded with healthy_z_range"):
        module_of("mopo").Args().termination(replace(data, env_options=options))


@pytest.mark.parametrize("sign", [1, -1])
def test_negative_rewards_do_not_suit_mobile(train_short, tmp_path, capsys, sign):
    with h5py.File(tmp_path / "data.hdf5", "r+") as file:
        file["rewards"][:] = sign * np.abs(file["rewards"][:])
    train_short("mobile", **SHORT, out="mobile")
    assert ("targets of MOBILE are never below 0" in capsys.readouterr().err) == (sign < 0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rollout_length": 0}, "--rollout-length must lie in"),
        ({"real_ratio": 1.1}, r"--real-ratio must lie in \[0, 1\]"),
        ({"elites": 4}, "--elites must be at most --members, 3, got 4"),
        ({"terminates": "algos.terminations:never"}, "--never-terminates and --terminates contradict"),
        ({"never_terminates": False}, "of a dataset without an environment ends an episode: give --env-id, --never"),
        ({"dynamics": "none.safetensors"}, "there is no file none.safetensors"),
        ({"dynamics": "data.hdf5"}, "--dynamics data.hdf5 is no file of an ensemble"),
        ({"dynamics": "true", "never_terminates": False}, "true dynamics: --dataset data.hdf5 names no environment"),
        ({"dynamics": "true"}, "--dynamics true ends episodes as the task does"),
        ({"never_terminates": False, "terminates": "math:sin"}, "the function fails on observations"),
        ({"never_terminates": False, "terminates": "own_rules:half"}, "must turn a tensor of observations"),
        ({"never_terminates": False, "terminates": "own_rules:of_one_axis"}, "must turn a tensor of observations"),
        ({"never_terminates": False, "terminates": ".x:f"}, "--terminates takes module:function"),
        ({"dynamics": "true", "model_mix": 0.5, "never_terminates": False}, "--model-mix is the share"),
        ({"dynamics": "true", "mix_with": "random", "never_terminates": False}, "--model-mix is the share"),
        ({"mix_with": "random"}, "--mix-with random needs the share"),
        ({"real_ratio": 1.0, "model_mix": 0.5}, "--real-ratio 1 takes nothing from a model"),
        ({"real_ratio": 1.0, "mix_with": "random"}, "--real-ratio 1 takes nothing from a model: .* and --mix-with"),
        ({"real_ratio": 1.0, "vary": ("penalty_weight=0,1",)}, "--vary: penalty_weight changes nothing without a sha"),
        ({"model_mix": 1.0, "vary": ("penalty_weight=0,1",)}, "--vary: penalty_weight changes nothing without a share"),
        ({"rollouts": 10**10}, "--rollouts times --rollout-length times --retain-epochs: .* GiB"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(train_short, tmp_path, monkeypatch, overrides, message):
    monkeypatch.setitem(sys.modules, "own_rules", sys.modules[__name__])

    def begin():
        module_of("mopo").Args(**short("mopo", **SHORT | overrides)).check_task()
        train_short("mopo", **SHORT | overrides)

    with pytest.raises(UserError, match=message) as error:
        begin()
    assert "\n" not in str(error.value) and not list((tmp_path / "out").glob("*/*/*/*.parquet"))
