"""Stream TD against a learner of one run written with torch's own layers, its score, and what a run leaves."""

import json
import math
import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import stream_td
import torch
from scripts import agent_of, stream_layers_of
from stream_td import ObservationAverage, Score, StreamTD
from torch import nn

import algos.plot
import algos.run
from algos.errors import UserError
from algos.learner import Learner, learner_file
from algos.stream import Step
from envs.series import Sample, SeriesEnvs

EAGER = {"compile": False, "threads": 1}
PREDICTIONS = stream_td.predictions


@pytest.fixture(autouse=True)
def undrawn_predictions(monkeypatch):
    """Figures take longer to draw than a short run."""
    monkeypatch.setattr(stream_td, "predictions", lambda panels, title: b"")


@pytest.fixture
def predictions(monkeypatch):
    """Runs draw their predictions."""
    monkeypatch.setattr(stream_td, "predictions", PREDICTIONS)


def stream_of(runs: int, ticks: int, seed: int = 0):
    """Yields `ticks` steps, each cumulant [runs], row [runs, 7] and end [runs], which differ between runs."""
    g = torch.Generator().manual_seed(seed)
    for _ in range(ticks):
        row = 3 * torch.randn(runs, 7, generator=g, dtype=torch.float64) + 1
        end = (torch.rand(runs, generator=g) < 0.01).double()
        yield torch.rand(runs, generator=g, dtype=torch.float64), row, end


def start(agent, rows):
    """Starts all runs of an agent at their first rows."""
    agent.start(rows, torch.ones(len(rows), dtype=torch.float64))


def predicted(agent, cumulant, row, end):
    """Lets an agent learn from a step; returns its next predictions [runs]."""
    agent.update(Step(cumulant, row, end))
    return agent.output.clone()


class Lone:
    """Stream TD of one run, straight from the equations: torch's layers, and statistics of all that has been seen."""

    def __init__(self, agent: StreamTD, run: int):
        self.net = stream_layers_of(agent.critic, run)
        self.z = [torch.zeros_like(p) for p in self.net.parameters()]
        self.rows, self.seen, self.sums = [], [], []

    def see(self, row):
        self.rows.append(row)
        ages = torch.arange(len(self.rows)).flip(0)
        weights = 0.999**ages
        self.seen.append((weights[:, None] * torch.stack(self.rows)).sum(0) / weights.sum())
        seen = torch.stack(self.seen)
        variance = seen.var(0) if len(seen) > 1 else torch.ones_like(row)
        return (self.seen[-1] - seen.mean(0)) / (variance + 1e-8).sqrt()

    def start(self, row):
        self.state = self.see(row)

    def step(self, cumulant, row, end):
        going = 1 - float(end)
        self.sums.append(0.99 * going * (self.sums[-1] if self.sums else 0.0) + float(cumulant))
        variance = np.var(self.sums, ddof=1) if len(self.sums) > 1 else 1.0
        scale = math.sqrt(variance + 1e-8)
        next_state = self.see(row)
        value = self.net(self.state)[0]
        delta = (cumulant / scale + 0.99 * going * self.net(next_state)[0] - value).item()
        gradients = torch.autograd.grad(value, list(self.net.parameters()))
        self.z = [0.99 * 0.8 * z + g for z, g in zip(self.z, gradients, strict=True)]
        bound = 2 * max(abs(delta), 1) * sum(z.abs().sum().item() for z in self.z)
        with torch.no_grad():
            for p, z in zip(self.net.parameters(), self.z, strict=True):
                p += min(1 / bound, 1) * delta * z
            self.z = [going * z for z in self.z]
            self.state = next_state
            return self.net(self.state)[0].item() * scale


def test_many_runs_are_what_each_would_be_alone(float64):
    runs = 3
    agent = agent_of("stream_td", range(runs), hidden=(16, 16))
    lone = [Lone(agent, run) for run in range(runs)]
    (_, first, _), *rest = stream_of(runs, 201)
    start(agent, first)
    for run in range(runs):
        lone[run].start(first[run])
    assert sum(end.sum() for *_, end in rest) > 5
    for cumulant, row, end in rest:
        prediction = predicted(agent, cumulant, row, end)
        alone = [lone[run].step(cumulant[run], row[run], end[run]) for run in range(runs)]
        torch.testing.assert_close(prediction, torch.tensor(alone), atol=1e-9, rtol=0)
    for run, one in enumerate(lone):
        flat = torch.cat([p[run].flatten() for p in agent.critic.parameters()])
        torch.testing.assert_close(flat, nn.utils.parameters_to_vector(one.net.parameters()), atol=1e-9, rtol=0)


def test_seeds_together_are_what_they_are_alone(float64):
    together, (_, first, _), *rest = agent_of("stream_td", (4, 5, 6)), *stream_of(1, 101)
    alone = [agent_of("stream_td", (seed,)) for seed in (4, 5, 6)]
    start(together, first.expand(3, -1))
    for one in alone:
        start(one, first)
    for cumulant, row, end in rest:
        ours = predicted(together, cumulant.expand(3), row.expand(3, -1), end.expand(3))
        theirs = torch.cat([predicted(one, cumulant, row, end) for one in alone])
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)
    assert len(set(ours.tolist())) == 3


def test_a_run_is_not_touched_by_its_neighbours_bit_for_bit():
    def run_all(change=None, order=(0, 1, 2, 3)):
        agent, order = agent_of("stream_td", order), list(order)
        (_, first, _), *rest = stream_of(4, 101)
        start(agent, first[order])
        for tick, parts in enumerate(rest):
            cumulant, row, end = (part[order].clone() for part in parts)
            if change is not None and tick == 50:
                cumulant[1], row[1], end[1] = change, change, 1 - end[1]
            prediction = predicted(agent, cumulant, row, end)
        return {**dict(agent.critic.named_parameters()), **dict(agent.obgd.named_buffers()),
                **dict(agent.observation_average.named_buffers()), "state": agent.state,
                "prediction": prediction}  # fmt: skip

    clean, permuted = run_all(), run_all(order=(2, 0, 3, 1))
    for name, tensor in clean.items():
        assert torch.equal(tensor[[2, 0, 3, 1]], permuted[name]), name
    for change in (math.nan, 1e9):
        for name, tensor in run_all(change).items():
            assert torch.equal(tensor[[0, 2, 3]], clean[name][[0, 2, 3]]), name
            # of observations the number counts alone, and the gradient of the last bias is always 1
            assert name in ("weight", "trace5") or not torch.equal(tensor[1], clean[name][1]), name


def test_an_average_has_no_bias_towards_its_start():
    average = ObservationAverage(1, 1, 0.9)
    assert average(torch.tensor([[2.0]])).item() == pytest.approx(2)
    assert average(torch.tensor([[4.0]])).item() == pytest.approx((0.09 * 2 + 0.1 * 4) / (1 - 0.81))
    assert average(torch.tensor([[1.0]])).item() == pytest.approx((0.081 * 2 + 0.09 * 4 + 0.1) / (1 - 0.729))
    average.clear(torch.ones(1))
    assert average(torch.tensor([[7.0]])).item() == pytest.approx(7)


def sample_of(future, known=1.0):
    return Sample(torch.zeros(2, 7), torch.zeros(2), torch.full((2,), future), torch.full((2,), known))


def test_r_squared_is_of_the_steps_that_count():
    score, truth = Score(2, 5), np.array([1.0, 2.0, 3.0, 6.0])
    for t, (future, off) in enumerate(zip(truth, (0.5, -0.5, 1.0, 0.0), strict=True)):
        error = score.add(torch.tensor([future, future + off]), sample_of(future))
        assert error.tolist() == [0, abs(off)], t
    assert score.add(torch.tensor([9.0, 9.0]), sample_of(0.0, known=0.0)).tolist() == [0, 0]
    ours, theirs = score.take(truth, 2)
    assert (ours.run, ours.total, ours.length) == (0, 1, 4)
    assert (theirs.run, theirs.total) == (1, pytest.approx(1 - 1.5 / 14))  # squares about the mean: 4 + 1 + 0 + 9
    assert score.squares.tolist() == [0, 0]
    assert score.take(truth, 5) == [] and score.take(np.ones(9), 2) == []


class Oracle(StreamTD):
    """Predicts what the stream will bring and `off` more: for row t, the return of row t."""

    off = 0.0
    position = 0

    def update(self, step, noise=None):
        metrics = super().update(step)
        self.position += 1
        self.output.fill_(self.truth[self.position] + self.off)
        return metrics


@pytest.fixture
def panels_of(tmp_path, monkeypatch):
    """Trains an agent of that class with a file of so many rows; gives what the last figure was drawn from."""

    def run(kind, rows=1_000, **overrides):
        drawn = []
        monkeypatch.setattr(stream_td, "StreamTD", kind)
        monkeypatch.setattr(stream_td, "predictions", lambda panels, title: drawn.append(panels) or b"")
        Oracle.truth = stream_td.load_series(csv_of(tmp_path, rows)).returns(0.9)
        train_csv(tmp_path, str(tmp_path / "data.csv"), discount=0.9, **overrides)
        return drawn[-1]

    return run


def test_perfect_predictions_score_one_at_all_steps_and_the_end_does_not_count(tmp_path, panels_of):
    panels = panels_of(Oracle, eval_every=300)
    for (first, truth, predicted), (row, known) in zip(panels, ((1, 499), (500, 470)), strict=True):
        assert first == row and predicted.shape == (1, 499) and np.isfinite(truth).sum() == known
        assert predicted[0, :known].tolist() == truth[:known].tolist()
    table = pd.read_parquet(next(tmp_path.rglob("eval.parquet")))
    assert table["return"].tolist() == pytest.approx([1, 1, 1, 1])
    # 998 steps; those from row 970 on lack more than 5%: 0.9 ** 29 = 0.047
    assert table["step"].tolist() == [300, 600, 900, 998] and table["length"].tolist() == [300, 300, 300, 300]
    errors = pd.read_parquet(next(tmp_path.rglob("train.parquet"))).query("metric == 'absolute_error'")
    assert errors["value"].max() < 1e-9 and errors["step"].max() == 998


def test_a_part_of_a_series_is_compared_with_that_part(tmp_path, panels_of):
    """Also where it ends before half of an interval between evaluations, and far from the end of the series."""
    (first, second) = panels_of(Oracle, total_steps=400, eval_every=5_000)
    for row, (start, truth, values) in zip((1, 201), (first, second), strict=True):
        assert start == row and values.shape == (1, 200)
        assert values[0].tolist() == truth.tolist() == Oracle.truth[row : row + 200].tolist()
    table = pd.read_parquet(next(tmp_path.rglob("eval.parquet")))
    assert table[["step", "length"]].to_numpy().tolist() == [[400, 400]] and table["return"].tolist() == [1.0]


def test_mean_errors_are_of_the_steps_that_count(tmp_path, panels_of, monkeypatch):
    monkeypatch.setattr(Oracle, "off", 0.5)
    panels_of(Oracle, rows=400)
    errors = pd.read_parquet(next(tmp_path.rglob("train.parquet"))).query("metric == 'absolute_error'")
    assert errors["step"].max() == 398 and errors["value"].tolist() == pytest.approx([0.5] * len(errors))


def test_a_replayed_update_that_gives_the_same_tensors_again_logs_what_an_eager_one_does(tmp_path, monkeypatch):
    def replayed(function, *_):
        kept: dict[str, torch.Tensor] = {}

        def call(*args):
            for name, value in function(*args).items():
                kept.setdefault(name, value.clone()).copy_(value)
            return kept

        return call

    path, tables = csv_of(tmp_path, 400), []
    for variant in ("eager", "replayed"):
        train_csv(tmp_path, path, discount=0.9, variant=variant)
        tables.append(pd.read_parquet(next(tmp_path.rglob(f"{variant}/train.parquet"))).query("metric != 'seconds'"))
        monkeypatch.setattr(algos.run, "compiled", replayed)
    pd.testing.assert_frame_equal(*tables, check_exact=True)


class Diverging(Oracle):
    """Run 0 breaks at step 700."""

    def update(self, step, noise=None):
        metrics = super().update(step)
        if self.position >= 700:
            self.output[0] = metrics["value"][0] = math.nan
        return metrics


def test_a_figure_leaves_a_diverged_seed_out_where_it_has_no_predictions(panels_of, monkeypatch):
    panels = panels_of(Diverging, seeds=("3", "4"))
    (_, _, first), (_, truth, last) = panels
    assert np.isfinite(first).all() and np.isnan(last[0, 201:]).all()
    assert last[1, :470].tolist() == truth[:470].tolist()
    from matplotlib.axes import Axes

    labels, plot = [], Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda *args, **more: labels.append(more["label"]) or plot(*args, **more))
    assert algos.plot.predictions(panels, "title").startswith(b"\x89PNG")
    assert labels == ["true", "predicted, 2 seeds", "true", "predicted, 1 seed"]


def test_names_with_dollar_signs_are_drawn_as_they_are(tmp_path, curves, predictions):
    text = Path(csv_of(tmp_path, 400)).read_text().replace(",y\n", ",$x_$\n")
    (tmp_path / "$d_$.csv").write_text(text)
    train_csv(tmp_path, str(tmp_path / "$d_$.csv"), total_steps=100)
    figures = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*.png")}
    assert figures.keys() == {"curve.png", "prediction.png"}
    assert all(data.startswith(b"\x89PNG") for data in figures.values())


def test_a_run_that_says_it_is_finished_has_its_figures(tmp_path, curves, monkeypatch):
    def end(*_):
        raise ZeroDivisionError

    file = csv_of(tmp_path, 400)
    with monkeypatch.context() as patch:
        patch.setattr(algos.plot, "curves", end)  # it is drawn after the last checkpoint
        with pytest.raises(ZeroDivisionError):
            train_csv(tmp_path, file, total_steps=100)
    config = next(tmp_path.rglob("config.json"))
    assert json.loads(config.read_text())["status"] == "running" and len(list(tmp_path.rglob("prediction.png"))) == 1
    train_csv(tmp_path, file, total_steps=100, resume=True)
    assert json.loads(config.read_text())["status"] == "finished" and len(list(tmp_path.rglob("curve.png"))) == 1


def csv_of(tmp_path, rows):
    t = np.arange(rows)
    frame = pd.DataFrame({"date": pd.date_range("2020-01-01", periods=rows, freq="h"), "a": np.sin(t / 50)})
    frame["b"], frame["c"] = np.cos(t / 50), np.sin(t / 17)
    frame["y"] = np.cos(t / 50) + 0.5 * np.cos(t / 17)
    frame.to_csv(tmp_path / "data.csv", index=False)
    return str(tmp_path / "data.csv")


def train_csv(tmp_path, path, **overrides):
    """As `train`, which looks for folders where names with slashes do not lie."""
    args = {**EAGER, "env_id": path, "hidden": (16,), "log_every": 100, **overrides}
    stream_td.main(stream_td.Args(quiet=True, out=tmp_path / "out", device="cpu", **args))


@pytest.mark.slow
def test_it_learns_seasons(train):
    result = train("stream_td", seeds=("0", "1"), total_steps=3_000, eval_every=1_000, **EAGER)
    table = pd.read_parquet(result.folder / "eval.parquet").pivot(index="seed", columns="step", values="return")
    assert (table[3_000] > table[1_000] + 5).all()
    assert (table[3_000] > -10).all()  # about -1; without learning -100 and less


@pytest.mark.slow
def test_it_foresees_a_sum_of_waves(tmp_path):
    path = csv_of(tmp_path, 4_500)
    train_csv(tmp_path, path, hidden=(32, 32), observation_trace=0.0, total_steps=4_000, eval_every=1_000)
    scores = pd.read_parquet(next(tmp_path.rglob("eval.parquet")))["return"]
    assert scores.iloc[0] < 0.3 and scores.iloc[-1] > 0.6  # of 4 seeds, 0.88 to 0.96 at the end


def test_an_interrupted_run_goes_on_to_the_bitwise_same_end(train, predictions, monkeypatch):
    short = {"seeds": ("0", "3"), "total_steps": 350, "eval_every": 100, "log_every": 75, **EAGER}
    whole = train("stream_td", **short)
    receive = SeriesEnvs.receive

    def interrupt(self):
        if self.position == 164:
            os.kill(os.getpid(), signal.SIGINT)
        return receive(self)

    monkeypatch.setattr(SeriesEnvs, "receive", interrupt)
    cut = train("stream_td", out="cut", **short)
    assert cut.code == 130 and cut.config["step"] == 165 and (cut.folder / "prediction.png").exists()
    monkeypatch.setattr(SeriesEnvs, "receive", receive)
    cut = train("stream_td", out="cut", resume=True, **short)
    assert cut.code == 0
    ours, theirs = cut.parameters, whole.parameters
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert any("score" in name for name in ours)
    for table in ("eval.parquet", "train.parquet"):
        frames = [pd.read_parquet(run.folder / table) for run in (cut, whole)]
        if table == "train.parquet":
            order = ["seed", "step", "metric"]
            frames = [f.query("metric != 'seconds'").sort_values(order, ignore_index=True) for f in frames]
        pd.testing.assert_frame_equal(*frames, check_exact=True)
    assert (cut.folder / "prediction.png").read_bytes() == (whole.folder / "prediction.png").read_bytes()


def test_a_run_leaves_its_tables_figures_and_a_learner(train, curves, predictions):
    result = train("stream_td", seeds=("0", "1"), total_steps=400, eval_every=150, **EAGER)
    assert result.config["status"] == "finished" and result.config["facts"]["target_column"] == "oil_temperature"
    table = pd.read_parquet(result.folder / "eval.parquet")
    assert sorted(set(table["step"])) == [150, 300, 400] and set(table["length"]) == {150, 100}
    assert {"curve.png", "prediction.png"} <= {path.name for path in result.folder.iterdir()}
    facts = json.loads((result.folder / "series.json").read_text())
    assert facts["target"] == "oil_temperature" and facts["low"] < facts["high"] and len(facts["columns"]) == 7
    kept = result.parameters
    assert kept["score/first"].isfinite().all() and kept["score/last"].isfinite().all()
    learner = Learner.load(result.folder / "learner.safetensors", StreamTD, seed=1)
    assert float(learner.step(np.ones(7), 0.5, False)) != 0


def test_a_learner_goes_on_predicting_by_itself_where_its_run_was(tmp_path):
    together = agent_of("stream_td", (5, 6))
    (_, first, _), *rest = stream_of(2, 60)
    start(together, first)
    for parts in rest[:30]:
        together.update(Step(*parts))
    (tmp_path / "learner.safetensors").write_bytes(learner_file(together))
    learner = Learner.load(tmp_path / "learner.safetensors", StreamTD, seed=6)
    for cumulant, row, _ in rest[30:]:
        expected = predicted(together, cumulant, row, torch.zeros(2, dtype=torch.float64))
        prediction = learner.step(row[1].numpy(), float(cumulant[1]), False)
        assert float(prediction) == pytest.approx(expected[1].item(), abs=1e-5)


def test_a_learner_that_starts_anew_has_clear_traces(float64):
    agent = agent_of("stream_td", (6,))
    learner, (_, first, _), *rest = Learner(agent), *stream_of(1, 30)
    learner.start(first[0].numpy())
    for cumulant, row, _ in rest[:20]:
        learner.step(row[0].numpy(), float(cumulant), False)
    fresh = agent_of("stream_td", (6,))
    for name in ("critic", "features", "reward_scaler"):  # what it has learned; no traces
        getattr(fresh, name).load_state_dict(getattr(agent, name).state_dict())
    start(fresh, first)
    assert learner.start(first[0].numpy()) == pytest.approx(fresh.predict().item(), abs=1e-12)
    for cumulant, row, end in rest[20:]:
        expected = predicted(fresh, cumulant, row, 0 * end)
        assert learner.step(row[0].numpy(), float(cumulant), False) == pytest.approx(expected.item(), abs=1e-12)


def test_columns_without_numbers_are_left_out_aloud(tmp_path, capsys):
    path = csv_of(tmp_path, 400)
    stream_td.main(stream_td.Args(env_id=path, total_steps=40, hidden=(16,), out=tmp_path, device="cpu", **EAGER))
    assert f"{path}: left out for want of numbers or a name: date\n" in capsys.readouterr().out
    assert json.loads(next(tmp_path.rglob("series.json")).read_text())["columns"] == ["a", "b", "c", "y"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a file of 400 rows and a run in it."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_td, "predictions", lambda panels, title: b"")
        train_csv(folder, csv_of(folder, 400))
    return folder


def test_all_steps_of_a_series_are_made_where_none_are_named(finished):
    config = json.loads(next(finished.rglob("config.json")).read_text())
    assert config["step"] == 398 and config["facts"]["target_column"] == "y"


def test_bad_arguments_are_refused_in_a_sentence(tmp_path):
    path = csv_of(tmp_path, 400)
    cases = [
        ({"env_id": "season"}, r"--env-id: 'season' is neither"),
        ({"total_steps": 399}, r"--total-steps 399 is more than .*data.csv has: its 400 rows make 398 steps"),
        ({"total_steps": -1}, r"--total-steps must be at least 0"),
        ({"target_column": "OT"}, r"^--target-column: .* no column 'OT'; .* a, b, c, y"),
        ({"target_column": "date"}, r"^--target-column: column date .* has no numbers or no name"),
        ({"discount": 1.0}, r"--discount must lie in"),
        ({"discount": 0.999}, r"400 rows, too few for sums with --discount 0.999, which take 2,"),
        ({"observation_trace": 1.0}, r"--observation-trace must lie in"),
    ]
    for overrides, message in cases:
        with pytest.raises(UserError, match=message):
            train_csv(tmp_path, path, **overrides)
    assert not (tmp_path / "out").exists()


def test_a_run_is_not_resumed_in_a_series_that_changed(finished):
    file = finished / "data.csv"
    text = file.read_text()
    file.write_text(text.replace("2020-01-01 00:00:00,0.0", "2020-01-01 00:00:00,0.5"))
    try:
        with pytest.raises(UserError, match=r"another configuration \(series_digest"):
            train_csv(finished, str(file), resume=True)
    finally:
        file.write_text(text)


def test_another_column_is_named_and_not_the_digest_that_changes_with_it(finished):
    with pytest.raises(UserError, match=r"another configuration \(target_column: y there, a here"):
        train_csv(finished, str(finished / "data.csv"), resume=True, target_column="a")
