"""Losses, networks and runs of goal-conditioned methods: the sheet's hand-computed values, and bad input."""

import inspect
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from crl import Bilinear
from offline_data import write_hdf5
from qrl import iqe, mrn, union, union_of_pairs
from scripts import SCRIPTS, agent_type, module_of, needs_compiler, short
from torch import Tensor

from algos import goal_conditioned
from algos.cli import check_all
from algos.data import Dataset
from algos.errors import UserError
from algos.evaluate import success_of
from algos.goal_conditioned import (
    advantage_weight,
    frozen,
    log_prob,
    network,
    sphere,
    twin_value_loss,
)
from algos.goal_data import check_maze, has_maze, load_states, validation_data
from algos.goals import Clusters, Goals, Mix
from algos.nn import initialise
from algos.offline import told_defaults
from algos.policy import PolicyFile
from algos.random import generators
from benchmarks import evaluate
from benchmarks.load_scores import load
from envs import Task, d4rl
from envs.mazes import maze_of

METHODS = ("gcbc", "gcivl", "gciql", "crl", "qrl", "hiql", "ota")
POINT = Task("pointmaze", (2,), 2, False, (-1.0, -1.0), (1.0, 1.0), 1000)
NAME: dict[str, Any] = {"dataset": "local/pointmaze-medium-navigate-v0"}


def tensor(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_help_names_the_default_goals_of_each_kind_of_data():
    """`--help` can only show one default of three numbers; its text has to name the others."""
    text, default = inspect.getsource(goal_conditioned), goal_conditioned.ValueArgs.actor_goals
    assert set(default.domains) == {"stitch", "explore"}
    for domain, goals in default.domains.items():
        assert f"{' '.join(f'{share:g}' for share in goals)} for {domain} data" in text


def test_the_expectile_loss_of_the_sheet(float64):
    backup, target = tensor([[-3.0], [-4.0]]), tensor([[-5.0], [-4.5]])
    q = -1 + 0.99 * backup
    assert q.flatten().tolist() == pytest.approx([-3.97, -4.96])
    loss = twin_value_loss(tensor([[-4.8], [-4.6]]), q, target, 0.7)
    assert loss.item() == pytest.approx(0.24555, abs=1e-12)


def test_the_weighted_imitation_of_the_sheet():
    likelihood = log_prob(tensor([[0.0, 0.0]]), tensor([[0.2, -0.1]]))
    assert likelihood.item() == pytest.approx(-1.862877, abs=1e-6)
    for advantage, weight, loss in ((0.5, 4.481689, 8.348836), (2.0, 100.0, 186.2877), (-0.5, 0.223130, 0.415664)):
        found = advantage_weight(tensor(advantage), 3.0)
        assert found.item() == pytest.approx(weight, abs=1e-6)
        assert (-found * likelihood).item() == pytest.approx(loss, abs=5e-5)


def test_the_quasimetrics_of_the_sheet(monkeypatch):
    monkeypatch.setattr("qrl.INTERVALS", 2)
    x, y, other = (tensor([v]) for v in ([0.0, 1.0, 2.0, -1.0], [2.0, 0.5, 3.0, 0.0], [2.0, 3.0, 3.0, 0.0]))

    def distance(x: Tensor, y: Tensor) -> float:
        """IQE of latents whose two components are neighbours on the sheet, and alternate in ours."""
        return iqe(x[..., [0, 2, 1, 3]], y[..., [0, 2, 1, 3]], tensor([0.5])).item()

    assert distance(x, y) == 2.0
    assert distance(y, x) == 0.375
    assert distance(x, x) == 0.0
    assert distance(x, other) == 2.75
    assert mrn(x, y).item() == pytest.approx(2.0615528, abs=1e-7)
    assert mrn(y, x).item() == pytest.approx(3.0615528, abs=1e-7)
    here = mrn(x.requires_grad_(), x.detach())
    assert here.item() == pytest.approx(1e-6) and torch.autograd.grad(here.sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("form", [union, union_of_pairs])
def test_the_length_of_a_union(form):
    """Against counting on a fine grid, with eight intervals that overlap, touch, end together and are empty."""
    low, high = torch.randint(0, 12, (2, 500, 8, 3), generator=torch.Generator().manual_seed(0)).double()
    middles = torch.arange(12) + 0.5
    inside = (low[..., None] < middles) & (middles < high[..., None])
    assert torch.allclose(form(low, high), inside.any(-3).sum(-1).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", [union, union_of_pairs])
def test_a_union_has_the_gradient_of_finite_differences(form):
    """And NaN stays NaN, in its component alone."""
    low, high = torch.randn(2, 2, 5, 8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.autograd.gradcheck(form, (low.requires_grad_(), high.requires_grad_()))
    for bounds in (low.detach(), high.detach()):
        kept, bounds[1, 2, 3, 1] = bounds[1, 2, 3, 1].item(), math.nan
        assert form(low, high).isnan().nonzero().tolist() == [[1, 2, 1]]
        bounds[1, 2, 3, 1] = kept


@needs_compiler
def test_a_compiled_iqe_is_the_other_one():
    x, y = torch.randn(2, 2, 5, 24, generator=torch.Generator().manual_seed(0))
    kappa = torch.tensor([[0.3], [0.6]])
    assert torch.allclose(torch.compile(iqe)(x, y, kappa), iqe(x, y, kappa))


def agent_of(script: str, **overrides: Any) -> Any:
    return agent_type(script)(module_of(script).Args(**NAME, **overrides), POINT, (0,))


def test_the_losses_of_qrl_of_the_sheet(float64):
    agent = agent_of("qrl", hidden=(4,), latent_size=8)
    assert agent.log_multiplier.item() == agent.distance.raw_kappa.item() == 0
    loss, violation = agent.distance_loss(tensor([10.0, 200.0]), tensor([0.5, 1.5]))
    assert violation.item() == 0.125
    assert loss.item() == pytest.approx(397.8503, abs=1e-4)
    (slope,) = torch.autograd.grad(loss.sum(), agent.log_multiplier)
    assert slope.item() == pytest.approx(-0.075)


def test_the_contrastive_loss_of_the_sheet(monkeypatch):
    critic = Bilinear((1,), 2, 2, (4,), 2)
    phi, psi = torch.eye(2)[None], tensor([[2.0, 0.5], [-1.0, 1.0]]).float()  # logits [[2, -1], [0.5, 1]]
    monkeypatch.setattr(critic, "latents", lambda *_: (phi, psi))
    assert (phi @ psi.mT)[0].tolist() == [[2.0, -1.0], [0.5, 1.0]]
    assert critic.contrast().item() == pytest.approx(0.4318821, abs=1e-6)


def test_representations_have_the_length_of_the_root_of_their_size():
    assert sphere(tensor(3.0, 4.0, 0.0, 0.0)).tolist() == pytest.approx([1.2, 1.6, 0.0, 0.0])
    agent = agent_of("hiql", hidden=(8,))
    rep = agent.phi(torch.randn(1, 5, 2), torch.randn(1, 5, 2))
    assert rep.norm(dim=-1).flatten().tolist() == pytest.approx([math.sqrt(10)] * 5, rel=1e-6)


COUNTS = {"gcbc": 528_898, "gcivl": 2_654_726, "gciql": 3_190_279, "crl": 3_701_250, "qrl": 2_376_196,
          "hiql": 3_744_282, "ota": 5_886_494}  # fmt: skip


@pytest.mark.parametrize("script", COUNTS)
def test_networks_have_the_official_numbers_of_parameters(script):
    assert sum(p.numel() for p in agent_of(script).parameters()) == COUNTS[script]


def test_the_form_of_rvs_is_that_of_its_paper():
    """The numbers of parameters for a point and an ant, actions in [-1, 1], and gradients that are scaled to 0.25."""
    form = {"goal": "position", "loss": "mse", "hidden": (1024, 1024), "max_norm": 0.25, "lr": 1e-3}
    for obs_size, act_size, count in ((4, 2, 1_058_818), (29, 8, 1_090_568)):
        task = Task("maze", (obs_size,), act_size, False, (-1.0,) * act_size, (1.0,) * act_size, 0)
        module = module_of("gcbc")
        agent = module.GCBC(module.Args(**NAME, **form), task, (0,))
        assert sum(p.numel() for p in agent.parameters()) == count
        assert agent.policy(100 * torch.randn(1, 50, obs_size), torch.randn(1, 50, obs_size)).abs().max() <= 1
    clipped = agent.adam._clipped([torch.ones(1, 30, 1024), torch.ones(1, 1, 1024)])
    assert sum(g.square().sum() for g in clipped).sqrt().item() == pytest.approx(0.25, rel=1e-4)


def test_layers_are_those_of_the_official_code():
    """GELU in its tanh form, then normalisation with an epsilon of 1e-6; the actor has none, and small last weights."""
    net = network((1,), 3, (4,), 2)
    initialise(net, generators([0], "net"))
    net.hidden[0][0].weight.data.fill_(0.3)
    net.hidden[0][0].bias.data.copy_(torch.linspace(-1, 1, 4))
    x = torch.tensor([[[1.0, -2.0, 0.5]]])
    hidden = 0.3 * x.sum() + net.hidden[0][0].bias
    gelu = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
    mean, var = gelu.mean(), gelu.var(unbiased=False)
    expected = (gelu - mean) / (var + 1e-6).sqrt() @ net.out.weight + net.out.bias
    torch.testing.assert_close(net(x), expected)
    agent = agent_of("gcivl")
    assert agent.actor.net.norms is None
    bound = math.sqrt(3 * 0.01 / ((512 + 2) / 2))
    last = agent.actor.net.out.weight.abs().max().item()
    assert 0.95 * bound < last <= bound
    for net, inputs in ((agent.actor.net, 4), (agent.value.net, 4)):
        bound = math.sqrt(6 / (inputs + 512))
        assert 0.95 * bound < net.hidden[0][0].weight.abs().max().item() <= bound
        assert not any(layer[0].bias.any() for layer in net.hidden) and not net.out.bias.any()
    bound = math.sqrt(6 / (512 + 1))
    assert 0.95 * bound < agent.value.net.out.weight.abs().max().item() <= bound


def test_a_frozen_module_passes_gradients_to_its_inputs_only():
    net = network((1,), 2, (4,), 1)
    initialise(net, generators([0], "net"))
    x = torch.randn(1, 3, 2, requires_grad=True)
    loss = frozen(net)(x).square().sum()
    assert torch.autograd.grad(loss, x, retain_graph=True)[0].abs().sum() > 0
    found = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
    assert all(gradient is None for gradient in found)


@pytest.mark.parametrize("script", ["hiql", "ota"])
def test_a_proposal_is_brought_to_the_length_of_a_representation(script):
    agent, seen = agent_of(script, hidden=(8,)), []
    low = agent.low.forward
    agent.low.forward = lambda obs, rep: seen.append(rep) or low(obs, rep)
    obs, goal = torch.randn(2, 1, 5, 2, generator=torch.Generator().manual_seed(0))
    before = agent.policy(obs, goal)
    assert seen[0].norm(dim=-1).flatten().tolist() == pytest.approx([math.sqrt(10)] * 5, rel=1e-6)
    with torch.no_grad():
        for parameter in agent.high.net.out.parameters():
            parameter.mul_(10.0)
    torch.testing.assert_close(agent.policy(obs, goal), before)
    assert before.std() > 0


def made_batch(script: str) -> Any:
    """A batch of four random transitions of HIQL or OTA."""
    module, g = module_of(script), torch.Generator().manual_seed(0)
    x = [torch.randn(1, 4, 2, generator=g) for _ in range(9)]
    goal, other = (module.Goal(x[i], torch.full((1, 4), -1.0), torch.ones(1, 4)) for i in (0, 1))
    option = (x[2], other) if script == "ota" else ()
    return module.Batch(x[3], x[4], x[5], goal, *option, x[6], x[7], x[8])


@pytest.mark.parametrize("script", ["hiql", "ota"])
def test_each_policy_has_its_own_temperature(script):
    both, ones, threes = (
        agent_of(script, hidden=(8,), high_alpha=high, low_alpha=low).losses(made_batch(script))
        for high, low in ((1.0, 3.0), (1.0, 1.0), (3.0, 3.0))
    )
    for name, others in (("high_loss", (ones, threes)), ("low_loss", (threes, ones))):
        assert torch.equal(both[name], others[0][name]) and not torch.equal(both[name], others[1][name])


@pytest.mark.parametrize("script", ["hiql", "ota"])
def test_only_the_values_train_the_representation(script):
    agent = agent_of(script, hidden=(8,))
    phi = list(agent.phi.parameters())
    for name, loss in agent.losses(made_batch(script)).items():
        gradients = torch.autograd.grad(loss.sum(), phi, allow_unused=True, materialize_grads=True)
        assert any(g.abs().sum() > 0 for g in gradients) == name.endswith("value_loss"), name


# alphas of gcivl, gciql, qrl and crl, both alphas of hiql and ota, and k; section 4.2 of the sheet
OFFICIAL = {
    "pointmaze-medium-navigate": (10, 0.003, 0.0003, 0.03, 3, 25),
    "pointmaze-giant-stitch": (10, 0.003, 0.0003, 0.03, 3, 25),
    "pointmaze-teleport-navigate": (10, 0.003, 0.0003, 0.03, 3, 25),
    "antmaze-large-navigate": (10, 0.3, 0.003, 0.1, 3, 25),
    "antmaze-giant-stitch": (10, 0.3, 0.003, 0.1, 3, 25),
    "antmaze-teleport-explore": (10, 0.01, 0.001, 0.003, 10, 25),
    "humanoidmaze-giant-navigate": (10, 0.1, 0.001, 0.1, 3, 100),
    "humanoidmaze-medium-stitch": (10, 0.1, 0.001, 0.1, 3, 100),
    "antsoccer-arena-navigate": (10, 0.1, 0.003, 0.3, 3, 25),
    "antsoccer-medium-stitch": (10, 0.1, 0.003, 0.3, 3, 25),
    **{f"{name}-play": (10, 1, 0.3, 3, 3, 10) for name in ("cube-single", "cube-quadruple", "scene", "puzzle-4x6")},
    **{f"{name}-noisy": (10, 0.03, 0.03, 0.1, 3, 10) for name in ("cube-single", "cube-triple", "scene", "puzzle-3x3")},
}


@pytest.mark.parametrize("script", ["gcivl", "gciql", "crl", "qrl", "hiql", "ota"])
def test_the_value_of_a_goal_is_that_of_the_networks_behind_the_policy(script, monkeypatch):
    """Networks that tell their inputs apart: a state counts once, and a goal three times."""
    agent = agent_of(script)
    obs, goal = torch.randn(2, 1, 5, 2, generator=torch.Generator().manual_seed(0)).unbind()
    s, g = obs[..., 0], goal[..., 0]

    def gives(network: str, *twins: float) -> None:
        def forward(state: Tensor, goal: Tensor) -> Tensor:
            value = torch.stack([state[..., 0] + 3 * goal[..., 0] + twin for twin in twins], 1)
            return value if len(twins) > 1 else value[:, 0]

        monkeypatch.setattr(getattr(agent, network), "forward", forward)

    expected = s + 3 * g + 2.5
    if script == "gciql":
        gives("value", 2.5)
    elif script == "crl":  # the smaller of the twins' values, for an action that is clipped to its bounds
        monkeypatch.setattr(
            agent.actor, "forward", lambda s, g: torch.stack([s[..., 0] - g[..., 0] + 3, 0 * s[..., 0]], -1)
        )
        twins = torch.tensor([[1.0, 1.0], [-8.0, 0.0]])
        monkeypatch.setattr(
            agent.critic, "forward", lambda s, a, g: (a @ twins.T).mT + (s[..., 0] + 3 * g[..., 0])[:, None]
        )
        act = (s - g + 3).clamp(-1, 1)
        expected = torch.minimum(act, -8 * act) + s + 3 * g
    elif script == "qrl":
        monkeypatch.setattr(agent.distance.phi, "forward", lambda x: 2 * x)
        monkeypatch.setattr(agent.distance, "forward", lambda x, y: x[..., 0] + 3 * y[..., 0])
        expected = -2 * (s + 3 * g)
    elif script == "gcivl":
        gives("value", 1.0, 4.0)
    else:  # hiql and ota see the goal through phi
        monkeypatch.setattr(agent.phi, "forward", lambda s, g: g - 2 * s)
        gives("high_value" if script == "ota" else "value", 1.0, 4.0)
        expected = s + 3 * (g - 2 * s) + 2.5
    if script == "ota":
        gives("value", 2.0, 6.0)
        torch.testing.assert_close(agent.low_value_of(obs, goal), expected + 1.5)
    torch.testing.assert_close(agent.value_of(obs, goal), expected)


@pytest.mark.parametrize("source", ["ogbench", "local"])
@pytest.mark.parametrize("name", OFFICIAL)
def test_defaults_follow_the_dataset(name, source):
    def args(script: str) -> Any:
        return module_of(script).Args(dataset=f"{source}/{name}-v0")

    *alphas, high, k = OFFICIAL[name]
    assert [args(script).alpha for script in ("gcivl", "gciql", "qrl", "crl")] == alphas
    for script in ("hiql", "ota"):
        found = args(script)
        assert (found.high_alpha, found.low_alpha, found.subgoal_steps) == (high, high, k)
    assert args("ota").option_steps == 5


def test_other_defaults_are_those_of_the_sheet():
    for script in COUNTS:
        args = module_of(script).Args(**NAME)
        assert (args.batch_size, args.lr, args.hidden) == (1024, 3e-4, (512, 512, 512))
        assert (args.eval_every, args.eval_episodes) == (100_000, 50)
    goals = {"crl": (0.0, 1.0, 0.0), "qrl": (0.0, 0.0, 1.0)}
    for script in COUNTS.keys() - {"gcbc"}:
        value, actor = (getattr(module_of(script).Args(**NAME), name) for name in ("value_mix", "actor_mix"))
        assert value == Mix(*goals.get(script, (0.2, 0.5, 0.3)), geometric=True)
        assert actor == Mix(0.0, 1.0, 0.0, geometric=False)
    sizes = {"stitching-umaze": 20, "stitching-medium": 40, "stitching-large": 80, "pointmaze-giant-stitch": 160}
    for name, clusters in sizes.items():
        assert module_of("gcbc").Args(dataset=f"local/{name}-v0").clusters == clusters
    assert module_of("gciql").Args(dataset="d4rl/maze2d-medium-v1").alpha == 0.003  # as of OGBench's point mazes


def test_defaults_by_words_in_names_are_told_and_those_by_flags_are_not():
    said = told_defaults(module_of("hiql").Args(dataset="antmaze-explore.hdf5"))
    assert "--actor-goals 0.0 0.0 1.0 (as for explore)" in said and "--high-alpha 10.0" in said
    for args in (module_of("crl").Args(dataset="mine.hdf5", actor_loss="awr"), module_of("hiql").Args(**NAME)):
        assert not told_defaults(args)


def test_defaults_are_those_of_the_official_commands():
    def value(script: str, dataset: str, name: str) -> Any:
        return getattr(module_of(script).Args(dataset=f"ogbench/{dataset}"), name)

    assert value("gciql", "antmaze-large-navigate-v0", "alpha") == 0.3
    assert value("gciql", "antmaze-large-explore-v0", "alpha") == 0.01
    assert value("gciql", "cube-single-play-v0", "alpha") == 1.0
    assert value("gciql", "puzzle-3x3-noisy-v0", "alpha") == 0.03
    assert value("qrl", "pointmaze-giant-stitch-v0", "alpha") == 0.0003
    assert value("crl", "antsoccer-arena-navigate-v0", "alpha") == 0.3
    assert value("crl", "scene-play-v0", "alpha") == 3.0
    assert value("qrl", "cube-single-noisy-v0", "alpha") == value("gciql", "scene-noisy-v0", "alpha") == 0.03
    assert module_of("gciql").Args(dataset="local/stitching-large-v0").alpha == 0.003
    assert module_of("qrl").Args(dataset="local/stitching-large-v0").actor_goals == (0.0, 0.5, 0.5)
    for script in ("gciql", "crl", "qrl"):
        assert module_of(script).Args(**NAME, actor_loss="awr").alpha == 3.0
        assert module_of(script).Args(**NAME, actor_loss="awr", alpha=1.0).alpha == 1.0
    assert value("hiql", "antmaze-medium-explore-v0", "high_alpha") == 10.0
    assert value("hiql", "humanoidmaze-large-stitch-v0", "subgoal_steps") == 100
    assert value("hiql", "cube-double-play-v0", "subgoal_steps") == 10
    for script in ("gcivl", "gciql", "crl", "qrl", "hiql", "ota"):
        assert value(script, "pointmaze-giant-navigate-v0", "discount") == 0.995
        assert value(script, "humanoidmaze-medium-stitch-v0", "discount") == 0.995
        assert value(script, "antmaze-large-navigate-v0", "discount") == 0.99
        assert value(script, "antmaze-large-navigate-v0", "actor_goals") == (0.0, 1.0, 0.0)
        assert value(script, "antmaze-large-stitch-v0", "actor_goals") == (0.0, 0.5, 0.5)
        assert value(script, "antmaze-large-explore-v0", "actor_goals") == (0.0, 0.0, 1.0)


# -- runs --------------------------------------------------------------------------------------------------------------

EVALUATED = {"eval_episodes": 2, "env_id": "pointmaze-medium-v0"}


@pytest.mark.usefixtures("short_ways_to_goals")
def test_a_run_is_scored_by_success_on_every_task(train_short, capsys, monkeypatch):
    """Every third episode counts as a success here, whatever the environment tells."""
    monkeypatch.setattr(
        "algos.evaluate.success_of",
        lambda infos, done: np.fmax(success_of(infos, done), (np.arange(done.size) % 3 == 0).reshape(done.shape)),
    )
    result = train_short("hiql", seeds=("0", "1"), quiet=False, **EVALUATED)
    table = result.eval
    assert set(table["task"]) == {f"task{k}" for k in range(1, 6)}
    assert table.groupby(["seed", "step"]).size().eq(10).all()
    assert set(table["success"]) <= {True, False} and set(table["step"]) == {0, 20}
    assert (table["length"] <= 20).all()
    out = capsys.readouterr().out
    assert "evaluated on 5 tasks of pointmaze-medium-v0" in out and "final success" in out
    percent = 100 * table.query("step == 20").groupby("seed")["success"].mean()
    told = re.findall(r"^ +(\d)  +(\S+)  +\S+  +20$", out, re.M)
    assert told == [(str(seed), f"{percent[seed]:.1f}") for seed in (0, 1)] and percent.min() >= 30
    assert re.search(r"step +20  success +(\S+) ", out)[1] == f"{percent.mean():.1f}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("script", [name for name, args in SCRIPTS.items() if args.get("dataset") == "goals.hdf5"])
def test_an_update_on_cuda_is_captured_and_resembles_its_eager_self(script, train_short, monkeypatch):
    replay, replayed = torch.cuda.CUDAGraph.replay, []
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: replayed.append(1) or replay(graph))
    graph = train_short(script, out="graph", device="cuda")
    assert len(replayed) >= 10  # of 20 updates
    eager = train_short(script, out="eager", device="cuda", eager=True)
    for name, tensor in eager.parameters.items():
        if name.startswith("agent/") and tensor.is_floating_point():
            torch.testing.assert_close(tensor, graph.parameters[name], atol=2e-3, rtol=2e-2)


def test_a_short_run_has_validation_losses_too(train_short, tmp_path):
    write_hdf5(tmp_path / "goals-val.hdf5", obs_size=2, act_size=2)
    logged = pd.read_parquet(train_short("gcivl", log_every=1000).folder / "train.parquet")
    assert set(logged.loc[logged["metric"].str.startswith("validation/"), "step"]) == {20}


@pytest.mark.usefixtures("short_ways_to_goals")
def test_a_video_that_comes_too_late_is_not_promised(train_short, monkeypatch, capsys):
    monkeypatch.setattr("algos.goal_conditioned.film_of", lambda *_: "filmed")
    train_short("gcbc", quiet=False, video=True, **EVALUATED)
    assert "filmed" in capsys.readouterr().out
    train_short("gcbc", quiet=False, video=True, resume=True, **EVALUATED)
    said = capsys.readouterr().out
    assert "filmed" not in said and "no video is made any more: python -m benchmarks.watch" in said


@pytest.mark.usefixtures("short_ways_to_goals")
@pytest.mark.parametrize("script", METHODS)
def test_actions_are_clipped_before_they_are_played(script, train_short, monkeypatch):
    """A point moves 0.2 along each axis in a step, whatever the mean of the policy is; walls push it back further."""
    monkeypatch.setattr(agent_type(script), "policy", lambda agent, obs, goal: torch.full_like(obs, 50.0))
    ways = pd.read_parquet(train_short(script, **EVALUATED).folder / "ways.parquet")
    moves = ways[ways["step"] >= 0].groupby("task")[["x", "y"]].diff().abs()
    assert 0.19 < moves.max().max() < 0.4


def test_an_environment_with_another_maze_is_refused():
    obs = torch.as_tensor(maze_of("pointmaze-medium-v0").points(5))
    data = SimpleNamespace(name="mine", env_id="pointmaze-medium-v0", obs=obs)
    check_maze(data, "antmaze-medium-v0")
    with pytest.raises(UserError, match="is not the maze of --dataset mine, which is that of pointmaze-medium-v0"):
        check_maze(data, "pointmaze-large-v0")
    with pytest.raises(UserError, match="cube-single-v0 is no maze, and --dataset mine is that of pointmaze-medium-v0"):
        check_maze(data, "cube-single-v0")


def test_an_environment_whose_walls_lie_where_the_data_is_is_refused():
    """A file names no environment, and states of all mazes have the same size."""
    obs = torch.as_tensor(maze_of("pointmaze-medium-v0").points(5))
    data = SimpleNamespace(name="mine", env_id=None, obs=obs)
    for fitting in ("pointmaze-medium-v0", "antmaze-medium-v0", "cube-single-v0"):
        check_maze(data, fitting)
    for other in ("pointmaze-large-v0", "antmaze-giant-v0", "PointMaze_Medium-v3"):
        with pytest.raises(UserError, match=r"is not the maze of --dataset mine: \d+% of its states lie inside walls"):
            check_maze(data, other)


def test_validation_episodes_of_another_size_are_refused(train_short, tmp_path):
    write_hdf5(tmp_path / "goals-val.hdf5", obs_size=3, act_size=2)
    with pytest.raises(UserError, match="are not of the same sizes"):
        train_short("gcivl")


def test_terminal_transitions_without_true_next_states_are_left_out(tmp_path):
    path = write_hdf5(tmp_path / "mine.hdf5", obs_size=2, act_size=2)
    whole, exact = load_states(str(path)), load_states(str(path), exact_d4rl=True)
    assert len(whole) == 300 and not exact.terminated[exact.index].any()
    assert len(exact) == 300 - 30  # the ends of 15 episodes that terminate and of 15 that time out
    goals = Goals(exact)
    first, last = exact.index[0], goals.last(exact.index[:1])
    assert (goals.ends < torch.cat([goals.starts[1:], goals.ends[-1:] + 1])).all() and last >= first


def test_in_d4rls_antmaze_no_transition_is_terminal(tmp_path):
    """Its flags say that the goal of its rewards was reached, where its episodes go on: only timeouts end them."""
    path = write_hdf5(tmp_path / Path(d4rl.find("antmaze-umaze-v2").file).name, obs_size=29, act_size=8)
    with h5py.File(path, "r+") as file:
        del file["next_observations"]
    data = load_states(str(path))
    assert len(data) == 300 - 15  # without those of the timeouts, the last row among them
    assert not data.terminated.any() and np.diff(data.trajectories()).tolist() == [[19]] * 15
    path.rename(path.with_name("mine.hdf5"))
    assert len(load_states(str(path.with_name("mine.hdf5")))) == 300 - 30


def test_states_of_gymnasium_robotics_are_without_their_goals(tmp_path, monkeypatch):
    path = write_hdf5(tmp_path / "mine.hdf5", obs_size=8, act_size=2)
    whole, states = load_states(str(path)), load_states(str(path), env_id="PointMaze_Medium-v3")
    assert whole.obs_size == 8 and states.obs_size == 4
    assert torch.equal(states.rows[:, :4], whole.rows[:, 4:8])  # place and velocity stand behind both goals
    monkeypatch.setattr("algos.goal_data.load", lambda *_: replace(whole, env_id="AntMaze_UMaze-v4"))
    with pytest.raises(UserError, match="goals and states are not apart"):
        load_states(str(path))


def test_groups_are_of_positions_or_of_whole_states(train_short, tmp_path, monkeypatch):
    made = []

    class Noted(Clusters):
        def __init__(self, goals, count, size):
            made.append(size)
            super().__init__(goals, count, size)

    monkeypatch.setattr("gcbc.Clusters", Noted)
    write_hdf5(tmp_path / "goals.hdf5", obs_size=4, act_size=2)
    for by in ({}, {"cluster_by": "state"}):
        train_short("gcbc", dataset=str(tmp_path / "goals.hdf5"), augment=0.5, clusters=3, total_steps=2,
                    out=f"{len(made)}", **by)  # fmt: skip
    assert made == [2, 4]


def test_policies_of_a_run_without_evaluations_are_evaluated_later(train_short, tmp_path, capsys):
    folder = train_short("gcbc", **EVALUATED | {"eval_episodes": 0}).folder
    assert PolicyFile(folder).environment["tasks"] == [f"task{k}" for k in range(1, 6)]
    evaluate.main(evaluate.Args(folder, episodes=1, out=tmp_path / "own"))
    table = pd.read_parquet(tmp_path / "own" / "episodes.parquet")
    assert set(table["task"]) == {f"task{k}" for k in range(1, 6)}
    with pytest.raises(UserError, match="no run that has learned and been evaluated"):  # and nothing is damaged
        load([folder.parents[2]])


def test_a_file_whose_name_tells_no_kind_or_family_is_told(train_short, tmp_path, capsys):
    kind, family = "has none of the words navigate, stitch", "--env-id have none of the words pointmaze, antmaze"
    train_short("gcivl")
    said = capsys.readouterr().err
    assert kind in said and family in said
    train_short("gcbc", out="gcbc")  # nothing in it depends on them
    assert "none of the words" not in capsys.readouterr().err
    (tmp_path / "goals.hdf5").rename(tmp_path / "stitch.hdf5")
    train_short("gcivl", dataset=str(tmp_path / "stitch.hdf5"), out="stitch")
    said = capsys.readouterr().err
    assert kind not in said and family in said
    (tmp_path / "stitch.hdf5").rename(tmp_path / "antmaze-stitch.hdf5")
    train_short("gcivl", dataset=str(tmp_path / "antmaze-stitch.hdf5"), out="antmaze")
    assert "none of the words" not in capsys.readouterr().err


def test_of_data_of_d4rl_it_is_known_whether_states_begin_with_a_position(train_short, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    for name, size in (("antmaze-umaze-v2", 29), ("kitchen-mixed-v0", 60)):
        write_hdf5(d4rl.find(name).place, obs_size=size, act_size=2)
    given = {"augment": 0.5, "clusters": 2, "eval_episodes": 0}
    train_short("gcbc", dataset="d4rl/antmaze-umaze-v2", **given)
    assert "begin with a position" not in capsys.readouterr().err
    with pytest.raises(UserError, match="has states of kitchen, whose first two numbers are no position"):
        train_short("gcbc", dataset="d4rl/kitchen-mixed-v0", **given)


def test_states_that_may_not_begin_with_a_position_are_told(train_short, tmp_path, capsys):
    train_short("gcbc", goal="position")
    assert "nothing tells whether states of --dataset goals.hdf5 begin with a position" in capsys.readouterr().err
    train_short("gcbc", out="state", augment=0.5, clusters=2, cluster_by="state")
    assert "begin with a position" not in capsys.readouterr().err
    write_hdf5(tmp_path / "goals.hdf5", obs_size=1, act_size=2)
    with pytest.raises(UserError, match="has states of one number, which is no position: take --goal state"):
        train_short("gcbc", out="one", goal="position")


def test_a_missing_package_is_named(monkeypatch):
    def lacks(env_id):
        raise ModuleNotFoundError("pointmaze-medium-v0 needs the package ogbench")

    monkeypatch.setattr("algos.goal_data.maze_of", lacks)
    with pytest.raises(UserError, match="needs the package ogbench"):
        has_maze("pointmaze-medium-v0")


def test_states_alone_are_enough_where_nothing_is_evaluated(train_short, tmp_path, monkeypatch):
    """Observations of a point maze of Gymnasium-Robotics hold goals too, and states do not."""
    pytest.importorskip("gymnasium_robotics")
    monkeypatch.setattr("algos.goal_data.MOST_INSIDE", 1.0)  # these states lie anywhere
    write_hdf5(tmp_path / "goals.hdf5", obs_size=4, act_size=2)
    run = train_short("gcbc", dataset=str(tmp_path / "goals.hdf5"), env_id="PointMaze_Open-v3", eval_episodes=0)
    assert run.code == 0


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("local/pointmaze-medium-stitch-v0", "local/pointmaze-medium-stitch-val-v0"),
        ("ogbench/pointmaze-medium-stitch-v0", "ogbench/pointmaze-medium-stitch-v0-val"),
        ("minari/pointmaze/umaze-v2", None),
    ],
)
def test_validation_episodes_are_looked_for_where_they_are(name, asked, monkeypatch, tmp_path):
    monkeypatch.setattr("algos.goal_data.load_states", lambda name, *_, **__: name)
    monkeypatch.setattr("algos.goal_data.cached", lambda name: tmp_path)
    monkeypatch.setattr("minari.storage.get_dataset_path", lambda name: tmp_path)
    assert validation_data(name) == asked


def test_data_in_which_no_next_state_is_known_are_refused(monkeypatch):
    data = Dataset.of(*np.zeros((2, 6, 1)), np.zeros(6), np.zeros((6, 1)), terminated=np.ones(6))
    monkeypatch.setattr("algos.goal_data.load", lambda *_: replace(data, true_ends=False))
    with pytest.raises(UserError, match="has no transition whose next state is known"):
        load_states("some")


@pytest.mark.parametrize("script", METHODS)
def test_settings_of_a_grid_learn_as_each_would_alone(script, train_short, float64):
    """Through the whole script: networks, Adam, and the goals that a discount draws."""
    grid = {"lr": (1e-3, 1e-2)} | ({} if script == "gcbc" else {"discount": (0.5, 0.95)})
    vary = tuple(f"{name}={low},{high}" for name, (low, high) in grid.items())
    always = {"actor_geometric": True} if script == "qrl" else {}  # where else its discount changes nothing
    together = train_short(script, seeds=("3",), vary=vary, out="grid", **always).agent
    for number, side in ((0, 0), (-1, 1)):
        flags = {name: values[side] for name, values in grid.items()}
        alone = train_short(script, seeds=("3",), out=f"alone{side}", **flags, **always).agent
        for name, tensor in alone.items():
            if tensor.dim():
                torch.testing.assert_close(together[name][number], tensor[0], atol=1e-9, rtol=0)
    if script != "gcbc":  # and the discount alone makes a difference
        assert any(not torch.equal(tensor[0], tensor[1]) for tensor in together.values() if tensor.dim())


@pytest.mark.parametrize("script", ["crl", "qrl"])
def test_a_discount_without_bellman_backups_counts_where_goals_are_geometric(script):
    args = module_of(script).Args
    assert "discount" in args(value_geometric=False).without_effect()
    assert "discount" in args(value_goals=(0.5, 0.0, 0.5)).without_effect()
    assert not args(value_goals=(0.0, 0.5, 0.5)).without_effect()
    assert "discount" not in args(value_geometric=False, actor_geometric=True).without_effect()


def test_how_later_states_are_drawn_counts_where_there_are_any():
    args = module_of("gcivl").Args
    idle = {"actor_geometric": "where no goal is a later state"}
    assert args(dataset="ogbench/antmaze-large-explore-v0").without_effect() == idle and not args().without_effect()
    assert "value_geometric" in args(value_goals=(0.5, 0.0, 0.5)).without_effect()


def test_the_probability_of_augmentation_may_vary_in_a_run(train_short):
    log = train_short("gcbc rvs", augment=0.0, vary=("augment=0,1",)).log.query("metric == 'augmented'")
    means = log.groupby("augment")["value"].mean()
    assert means[0.0] == 0 and means[1.0] > 0.5


def states_of(batch: Any) -> dict[str, torch.Tensor]:
    """The tensors [R, B, 2] of a batch, and of its parts, that hold states or goals."""
    found = {}
    for name, value in batch._asdict().items():
        if hasattr(value, "_asdict"):
            found |= {f"{name}.{inner}": tensor for inner, tensor in states_of(value).items()}
        elif name != "action" and isinstance(value, torch.Tensor) and value.dim() == 3:
            found[name] = value
    return found


@pytest.mark.parametrize("script", [*METHODS, "gcbc rvs"])
def test_validation_losses_are_those_of_validation_episodes(script, train_short, tmp_path, monkeypatch):
    """All of their states and goals are from there, none is replaced, and all losses are logged as they are."""
    write_hdf5(tmp_path / "goals-val.hdf5", obs_size=2, act_size=2, seed=1)
    with h5py.File(tmp_path / "goals-val.hdf5", "r") as file:
        held_out = {tuple(row) for name in ("observations", "next_observations") for row in file[name][:].tolist()}
    computed, seen = module_of(script).validation_losses, []

    def noted(losses, batch):
        assert isinstance(losses.__self__, agent_type(script)) and losses.__name__ == "losses"
        found, own = computed(losses, batch), losses(batch)
        assert found.keys() == {f"validation/{name}" for name in own}
        assert all(torch.equal(found[f"validation/{name}"], loss) for name, loss in own.items())
        seen.append((batch, found))
        return found

    monkeypatch.setattr(module_of(script), "validation_losses", noted)
    log = train_short(script, seeds=("0", "1"), **{"augment": 1.0} if script == "gcbc rvs" else {}).log
    assert len(seen) == 4  # after 5, 10, 15 and 20 updates
    for batch, _ in seen:
        states = states_of(batch)
        assert len(states) >= 2 and getattr(batch, "augmented", None) is None
        for name, tensor in states.items():
            assert {tuple(row) for row in tensor.reshape(-1, 2).tolist()} <= held_out, name
    logged = seen[-1][1]
    last = log[log["step"] == 20].set_index(["metric", "seed"])["value"]
    assert any(name.endswith("loss") for name in logged)
    for name, values in logged.items():
        assert [last[name, 0], last[name, 1]] == pytest.approx(values.tolist()), name


def test_validation_episodes_give_losses_of_their_own(train_short, tmp_path):
    assert not train_short("gcivl", out="without").log["metric"].str.startswith("validation/").any()
    write_hdf5(tmp_path / "goals-val.hdf5", obs_size=2, act_size=2, seed=1)
    log = train_short("gcivl", out="with").log
    names = set(log["metric"])
    assert {"validation/value_loss", "validation/actor_loss"} <= names
    both = log.pivot_table(index="step", columns="metric", values="value")
    assert not np.isclose(both["validation/actor_loss"], both["actor_loss"]).any()
    off = train_short("gcivl", out="off", validation=False).log["metric"]
    assert not off.str.startswith("validation/").any()


@pytest.mark.parametrize(
    ("script", "overrides", "message"),
    [
        ("hiql", {"env_id": "HalfCheetah-v5", "eval_episodes": 1}, "HalfCheetah-v5 has no tasks with goals"),
        ("hiql", {"env_id": "antmaze-medium-v0", "eval_episodes": 1}, "states of 2 numbers, and the goals of"),
        ("hiql", {"env_id": "PointMaze_UMaze-v3"}, "of its states lie inside walls"),
        ("hiql", {"env_id": "visual-antmaze-medium-v0", "eval_episodes": 1}, "images for observations"),
        (
            "hiql",
            {"env_id": "antmaze-medium-v0", "eval_episodes": 1},
            "the goals of antmaze-medium-v0 have 29",
        ),
        ("gcivl", {"value_goals": (0.2, 0.2, 0.2)}, "--value-goals takes three probabilities that sum to 1"),
        ("ota", {"actor_goals": (0.5, 0.5, 0.0)}, "--actor-goals must begin with 0"),
        ("gcivl", {"actor_goals": (0.0, 1.5, -0.5)}, "--actor-goals takes three probabilities that sum to 1"),
        ("hiql", {"subgoal_steps": 0}, "--subgoal-steps must be at least 1"),
        ("ota", {"option_steps": 0}, "--option-steps must be at least 1"),
        ("qrl", {"latent_size": 12}, "--latent-size must be a multiple of 8 for iqe"),
        ("qrl mrn", {"latent_size": 7}, "--latent-size must be a multiple of 2 for mrn"),
        ("gcbc", {"augment": 0.5, "clusters": 0}, "--clusters must be at least 1"),
        ("gcbc", {"augment": 0.5, "env_id": "cube-single-v0"}, "no position: take --cluster-by state"),
        ("gcbc", {"goal": "position", "env_id": "cube-single-v0"}, "no position: take --goal state"),
        ("gcivl", {"standardise": True}, "--standardise is not for goal-conditioned methods"),
        ("gcivl", {"video": True, "eval_episodes": 0}, "--video films the last evaluation, and with --eval-episodes 0"),
        ("gcivl", {"discount": 1.0}, "--discount must lie in"),
        ("hiql", {"dataset": "ogbench/visual-antmaze-medium-navigate-v0"}, "has images for observations"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(script, overrides, message, train_short, tmp_path):
    args = module_of(script).Args(**short(script, **overrides), out=tmp_path / "runs")

    def start() -> None:
        check_all(args)
        module_of(script).main(args)

    with pytest.raises(UserError, match=message):
        start()
    assert not (tmp_path / "runs").exists()
