"""Four updates of GCBC in the form of RvS, and its law of goals, against the official code of temporal augmentation.

`gcbc_updates.json` holds what that code computed in float64, from data, weights and random numbers that are formulas,
and names the commit that was run. Gradients are clipped in some updates and not in others, and goals are replaced in
some rows. The agent here has the arguments that the docstring of gcbc.py names for RvS, except for its sizes.
"""

import json
import shlex
from collections import Counter
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import gcbc
import numpy as np
import pytest
import torch
import tyro
from official_updates import for_two, set_weights, summary
from torch import Tensor

from algos.data import Dataset
from algos.goals import Clusters, Goals

STORED = json.loads((Path(__file__).parent / "gcbc_updates.json").read_text())
CASES, EPISODES, GROUPS = STORED["cases"], STORED["data"]["episodes"], np.array(STORED["data"]["g"])


def command() -> gcbc.Args:
    """The arguments of the first command in the docstring, which is that of RvS."""
    words = next(part for part in (gcbc.__doc__ or "").split("\n\n") if part.startswith("    python "))
    return tyro.cli(gcbc.Args, args=shlex.split(words.replace("\\\n", " "))[2:])


def agent_and_data(augment: float) -> tuple[gcbc.GCBC, Goals, Clusters | None]:
    """An agent of two small runs, the episodes by the file's formulas, and groups of whole states."""
    r, d, a = np.arange(len(GROUPS))[:, None], np.arange(4), np.arange(2)
    ends, kind = np.cumsum(EPISODES) - 1, np.where(d < 2, GROUPS[:, None] // 2, GROUPS[:, None] % 2)
    obs, action = np.cos(1.5 * kind + d) + 0.01 * np.sin(r + 2 * d), 0.4 * np.sin(1.9 * r + 0.8 * a)
    rows = torch.as_tensor(np.hstack([obs, action, 0 * r, 0 * r]), dtype=torch.get_default_dtype())
    data = Dataset("made", rows, torch.as_tensor(np.setdiff1d(r, ends)), 4, 2)
    args = command()
    args.hidden, args.augment = (8, 8), augment
    goals = Goals(data, final_states=True)  # as main has it where anchors are trajectories, see test_goals.py
    return gcbc.GCBC(args, data.task, (0, 1)), goals, Clusters(goals, 4, 4) if augment else None


def draws_of(step: int) -> gcbc.Draws:
    """The random numbers of the file's formula, the same for two runs."""
    b, f = np.arange(8), np.arange(5)[:, None]
    names = ("step", "place", "augment", "neighbour", "after")
    uniform = for_two((0.618 * b + 0.414 * f + 0.732 * step + 0.1237) % 1).unbind(1)
    return gcbc.Draws(row=torch.as_tensor(b + step).expand(2, 8), **dict(zip(names, uniform, strict=True)))


def in_their_layout(tensors: list[Tensor], path: str) -> Tensor:
    """That of our tensors, in the order of our parameters, which has this path in theirs, for both runs: a view."""
    _, layer, kind = path.split(".")  # layers have even numbers, and activations odd ones
    found = tensors[int(layer) + (kind == "bias")]
    return found.mT if kind == "weight" else found


def updated(case: str) -> tuple[gcbc.GCBC, list[dict[str, Any]]]:
    """An agent after the updates, and of each of them the metrics and the rows of states and goals."""
    agent, goals, clusters = agent_and_data(augment=0.5 if "augmented" in case else 0.0)
    paths, own = CASES[case]["after"], list(agent.actor.parameters())
    set_weights(paths, partial(in_their_layout, own), lambda _: 3.0 if "strong" in case else 1.0)
    seen = []
    for step in range(4):
        rows, targets, _ = agent.rows(goals, clusters, draws_of(step))
        seen.append(agent.update(agent.batch(goals, clusters, draws_of(step))) | {"rows": rows, "goals": targets})
    return agent, seen


def test_the_command_in_the_docstring_has_the_official_settings():
    args, official = command(), STORED["settings"]
    assert (args.batch_size, args.lr, args.max_norm) == (official["batch_size"], official["lr"], official["max_norm"])
    assert tuple(args.hidden) == (official["width"],) * 2 and args.total_steps == official["updates"]
    assert (args.eval_every, args.eval_episodes) == (official["eval_every"], official["eval_episodes"])


@pytest.mark.parametrize("case", CASES)
def test_updates_are_the_official_ones(case, float64):
    agent, seen = updated(case)
    for ours, theirs in zip(seen, CASES[case]["updates"], strict=True):
        assert ours["rows"].tolist() == [theirs["rows"]] * 2 and ours["goals"].tolist() == [theirs["goals"]] * 2
        assert ours["actor_loss"].tolist() == pytest.approx([theirs["loss"]] * 2, rel=1e-10)
        if "augmented" in case:
            assert ours["augmented"].tolist() == pytest.approx([np.mean(theirs["augmented"])] * 2)

    after, moments, own = CASES[case]["after"], CASES[case]["moments"], list(agent.actor.parameters())
    means = [agent.adam.get_buffer(name) for name in agent.adam.names[0]]
    assert sum(p.numel() for p in agent.parameters()) == 2 * sum(
        in_their_layout(own, path)[0].numel() for path in after
    )
    for name, tensors, stored in (("parameter", own, after), ("moment", means, moments)):
        for path, theirs in stored.items():
            for ours in in_their_layout(tensors, path):
                assert summary(ours) == pytest.approx(theirs, rel=1e-9, abs=1e-12), f"{name} {path}"


def test_the_bound_of_the_norm_acts_in_some_updates_and_not_in_others():
    for case in ("plain", "augmented"):
        norms = [update["norm"] for update in CASES[case]["updates"]]
        assert min(norms) < command().max_norm < max(norms)


@pytest.mark.parametrize("case", CASES)
def test_losses_in_float32_are_the_official_ones(case):
    for ours, theirs in zip(updated(case)[1], CASES[case]["updates"], strict=True):
        assert ours["actor_loss"].dtype == torch.float32
        assert ours["actor_loss"].tolist() == pytest.approx([theirs["loss"]] * 2, rel=1e-5)


@pytest.mark.parametrize(("law", "augment"), [("plain", 0.0), ("augmented", 0.25)])
def test_states_and_goals_have_the_official_law(law, augment):
    """Exactly: each random number takes the midpoints of parts of [0, 1), whose count all numbers of options divide."""
    agent, goals, clusters = agent_and_data(augment)
    row, *uniform = torch.meshgrid(*map(torch.arange, (4, 12, 12, 4, 12, 12)), indexing="ij")
    midpoints = [((x + 0.5) / x.shape[i + 1]).flatten().expand(2, -1) for i, x in enumerate(uniform)]
    rows, targets, _ = agent.rows(goals, clusters, gcbc.Draws(row.flatten().expand(2, -1), *midpoints))
    official = {(int(a), int(g)): Fraction(p) for a, of in STORED["laws"][law].items() for g, p in of.items()}
    for run in range(2):
        counts = Counter(zip(rows[run].tolist(), targets[run].tolist(), strict=True))
        assert {pair: Fraction(count, row.numel()) for pair, count in counts.items()} == official
