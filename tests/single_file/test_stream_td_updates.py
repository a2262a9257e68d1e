"""Ten steps of Stream TD against the authors' official code.

`stream_td_updates.json` holds what that code, its main function and its wrappers included, computed in float64 from a
series and weights that are formulas, and names the commit that was run. Our code reads the same series from a file. The
least and the greatest value of its target lie in later rows than those that these steps come to, and most columns are
far from 0, so that float32 would not do for averages and statistics. In the cases "strong" and "adaptive" the bound of
ObGD acts in some steps and not in others; "ends" has an episode that ends, which a series itself never has.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from official_updates import assert_step, stored_updates, summary, weights
from stream_td import Args, StreamTD
from torch import Tensor

from algos.stream import Step
from envs.series import Series, SeriesEnvs, load_series

STORED = stored_updates("stream_td")
# names there and here; all others are the defaults of both
SETTINGS = {"lr": "lr", "gamma": "discount", "lamda": "trace", "kappa_value": "kappa", "beta": "observation_trace"}


def made_series(folder: Path) -> Series:
    """The series of the file's formula, read from a table with dates, as that of the official code has."""
    i, c = np.arange(320)[:, None], np.arange(7)
    rows = (1 + c) * np.sin((0.5 + 0.2 * c) * i + 1.1 * c) + 4 * np.sin(i / 40) + 500 * c
    table = pd.DataFrame(rows, columns=list("abcdefg"))
    table.insert(0, "date", pd.date_range("2016-07-01", periods=len(rows), freq="15min"))
    table.to_csv(folder / "made.csv", index=False)
    return load_series(str(folder / "made.csv"))


def stepped(case: str, folder: Path) -> tuple[StreamTD, list[dict[str, Tensor]]]:
    """An agent of two runs after the steps, and what each of them gave."""
    stored, rows = STORED[case], []
    settings: dict[str, Any] = {SETTINGS[name]: value for name, value in stored["settings"].items()}
    args = Args(hidden=(10, 10), adaptive=case == "adaptive", **settings)
    envs = SeriesEnvs(made_series(folder), (0, 1), discount=args.discount)
    agent = StreamTD(args, envs.task, (0, 1))
    with torch.no_grad():
        for n, (path, ours) in enumerate(zip(stored["after"], agent.obgd.weights, strict=True)):
            ours.copy_(weights(path, ours[0].shape, n, 3.0 if case == "strong" else 1.0))
    never = torch.zeros(2, dtype=torch.float64)
    for step in range(10):
        if envs.restarted:
            agent.start(envs.obs, never + 1)
        sample, state = envs.receive(), agent.state.clone()
        ends = step in stored.get("ends", ())
        metrics = agent.update(Step(sample.cumulant, sample.obs, never + ends))
        rows.append({**metrics, "state": state, "prediction": agent.output.clone(), "return": sample.future})
        if ends:
            envs.reset()
    return agent, rows


@pytest.mark.parametrize("case", STORED)
def test_steps_are_the_official_ones(case, float64, tmp_path):
    agent, rows = stepped(case, tmp_path)
    for step, (ours, theirs) in enumerate(zip(rows, STORED[case]["steps"], strict=True)):
        assert ours.keys() - theirs.keys() <= {"return"}  # there is no official one where an episode ends
        assert_step(ours, theirs, step, rel=1e-8)

    after, traces, squares = (STORED[case].get(kind, {}) for kind in ("after", "traces", "squares"))
    assert sum(p.numel() for p in agent.obgd.weights) == sum(p.numel() for p in agent.parameters())
    assert after.keys() == traces.keys() and set(squares) == (set(after) if agent.args.adaptive else set())
    compared = [("weight", after, agent.obgd.weights, 1), ("trace", traces, agent.obgd.buffers_of("trace"), -1)]
    if squares:
        compared.append(("square", squares, agent.obgd.buffers_of("square"), 1))
    for kind, stored, tensors, sign in compared:
        for (path, theirs), both in zip(stored.items(), tensors, strict=True):
            for ours in both:
                assert summary(sign * ours) == pytest.approx(theirs, rel=1e-8, abs=1e-9), f"{kind} {path}"


@pytest.mark.parametrize("case", STORED)
def test_td_errors_and_predictions_in_float32_are_the_official_ones(case, tmp_path):
    _, rows = stepped(case, tmp_path)
    for ours, theirs in zip(rows, STORED[case]["steps"], strict=True):
        assert ours["td_error"].dtype == torch.float32
        assert ours["td_error"].tolist() == pytest.approx([abs(theirs["td_error"])] * 2, rel=1e-5, abs=1e-5)
        assert ours["prediction"].tolist() == pytest.approx([theirs["prediction"]] * 2, rel=1e-5, abs=1e-5)
