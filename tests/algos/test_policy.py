"""Policies after training: what a file holds, and that it acts as the agent did."""

import json
import shutil
import sys

import numpy as np
import pandas as pd
import pytest
import td3_bc
import torch
from safetensors.torch import save
from scripts import EVALUATED, EVALUATED_WITH_GOALS, UPDATED, Feed, agent_of, is_goals

from algos.adapted import Adapted
from algos.agent_file import contents
from algos.errors import UserError
from algos.learner import learner_file
from algos.policy import (
    SCRIPTS,
    Policy,
    PolicyFile,
    check_policies,
    inside,
    load_policy,
    policy_file,
    script_module,
    used_by_policy,
)
from algos.run_folder import digest_of_file
from benchmarks.export import Batched
from benchmarks.trained import Place, Trained
from envs import Task

ACTING = [script for script in UPDATED if script != "stream_td"]
OBS, ACTIONS, GOAL = (torch.randn(3, 5, 7) for _ in range(3))


def inputs(policy, runs=3):
    """Observations of three runs, and what else a policy takes."""
    return [OBS[:runs], *([GOAL[:runs]] if policy.with_goals else []), *([torch.tensor(2)] if policy.timed else [])]


def trained(script, **overrides):
    agent = agent_of(script, seeds=(4, 1, 7), **overrides)
    if hasattr(agent, "update"):
        for arguments, _ in zip(Feed(agent), range(3), strict=False):
            agent.update(*arguments)
    return agent


def written(path, agent, policy=None, script="sac", **more):
    path.write_bytes(policy_file(agent, policy or agent.policy, script, {}, 3, **more))
    return path


@pytest.mark.parametrize("script", ACTING)
def test_a_policy_acts_as_its_agent_did(script, tmp_path):
    agent = trained(script)
    path = written(tmp_path / "policy.safetensors", agent, script=script.split()[0])
    policy = PolicyFile(path).policy()
    expected = agent.policy(*inputs(policy))
    assert torch.equal(policy.act(*inputs(policy)), expected)
    assert expected.shape[:2] == (3, 5)
    one = load_policy(path, seed=1)
    more = {"goal": GOAL[1].numpy()} if is_goals(script) else {}
    more |= {"t": 2} if policy.timed else {}
    actions = one(OBS[1].numpy(), **more)
    np.testing.assert_allclose(actions, expected[1].numpy(), atol=1e-5)
    more |= {"goal": GOAL[1, 4]} if is_goals(script) else {}
    alone = one(OBS[1, 4], **more)  # without a batch
    torch.testing.assert_close(alone, expected[1, 4], rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def sac():
    return trained("sac")


def test_a_script_that_changed_since_a_file_was_written_is_warned_of(sac, tmp_path, capsys):
    for digest, warned in ((digest_of_file(SCRIPTS / "sac.py"), False), (None, False), ("another", True)):
        load_policy(written(tmp_path / "p.safetensors", sac, script_digest=digest), seed=1)
        told = f"warning: sac.py is not as it was when {tmp_path / 'p.safetensors'} was written: the policy may act"
        assert (told in capsys.readouterr().err) is warned


def test_a_file_holds_the_actor_alone(sac, tmp_path):
    names = set(PolicyFile(written(tmp_path / "p.safetensors", sac)).tensors)
    assert names == {f"agent/{name}" for name in sac.state_dict() if name.startswith("actor.")}


def test_statistics_of_observations_belong_to_acting():
    names = set(used_by_policy(trained("ppo")))
    assert {"obs_statistics.mean", "obs_statistics.squares"} <= names
    assert not any(name.startswith(("critic", "reward_normaliser")) or "adam" in name for name in names)


def test_an_error_lists_six_runs(tmp_path):
    path = written(tmp_path / "p.safetensors", agent_of("sac", seeds=range(9)))
    with pytest.raises(
        UserError, match=r"holds seed 0; seed 1; seed 2; seed 3; seed 4; seed 5; and 3 more: say which$"
    ):
        load_policy(path)


def test_a_run_is_chosen_by_its_setting(tmp_path):
    agent = agent_of("sac", seeds=(3, 5), vary=("actor_lr=1e-3,1e-2",))
    path = written(tmp_path / "p.safetensors", agent)
    with pytest.raises(UserError, match=r"holds seed 5, actor_lr 0\.001; seed 5, actor_lr 0\.01: say which$"):
        load_policy(path, seed=5)
    policy = load_policy(path, seed=5, actor_lr=1e-2)
    np.testing.assert_allclose(policy(OBS[0]), agent.policy(OBS[[0] * 4])[3], atol=1e-6)
    assert policy.agent.args.actor_lr.tolist() == [1e-2]


def test_a_seed_that_diverged_is_refused_and_others_are_not(tmp_path):
    agent = trained("sac")
    with torch.no_grad():
        agent.actor.net.out.bias[0] = torch.nan
    file = PolicyFile(written(tmp_path / "p.safetensors", agent, diverged=[2]))
    for number, seed in ((0, 4), (2, 7)):
        with pytest.raises(UserError, match=f"seed {seed} in .* has diverged"):
            file.policy([number])
    assert torch.equal(file.policy([1]).act(OBS[1:2]), agent.policy(OBS)[1:2])


def test_a_policy_for_prepared_data_acts_on_raw_observations(tmp_path):
    agent = trained("td3_bc")
    scaling = (torch.full((7,), 3.0), torch.full((7,), 2.0)), (torch.full((2,), 1.0), torch.full((2,), 4.0))
    adapted = Adapted(agent.policy, *scaling)
    path = written(tmp_path / "p.safetensors", agent, adapted, "td3_bc")
    expected = 1 + 4 * agent.policy((OBS - 3) / 2)
    assert torch.equal(PolicyFile(path).policy().act(OBS), expected)
    np.testing.assert_allclose(load_policy(path, seed=4)(OBS[0]), expected[0], atol=1e-5)
    half = written(tmp_path / "half.safetensors", agent, Adapted(agent.policy, None, scaling[1]), "td3_bc")
    assert torch.equal(PolicyFile(half).policy().act(OBS), 1 + 4 * agent.policy(OBS))


def test_arrays_give_arrays_and_tensors_tensors(sac, tmp_path):
    policy = load_policy(written(tmp_path / "p.safetensors", sac), seed=1)
    one, many = policy(OBS[0, 0].numpy()), policy(OBS[0])
    assert one.shape == (2,) and isinstance(one, np.ndarray)
    assert many.shape == (5, 2) and isinstance(many, torch.Tensor)
    assert policy(OBS[0].double()).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda p: p(np.zeros(6)), "an observation has 7 numbers"),
        (lambda p: p(np.zeros((2, 3, 7))), "takes one observation, or a batch of one or more, with one axis more"),
        (lambda p: p(np.zeros((0, 7))), "takes one observation, or a batch of one or more, with one axis more"),
        (lambda p: p(3.0), "an observation has 7 numbers"),
        (lambda p: p(np.zeros(7), goal=np.zeros(7)), "takes no goal"),
        (lambda p: p(np.zeros(7), t=3), "takes no t"),
    ],
)
def test_what_is_no_observation_is_refused(call, said, sac, tmp_path):
    with pytest.raises(ValueError, match=said):
        call(load_policy(written(tmp_path / "p.safetensors", sac), seed=1))


@pytest.mark.parametrize(
    ("script", "more", "said"),
    [
        *(
            ("gcbc", {"goal": np.zeros(shape)}, "a goal has 7 numbers")
            for shape in (3, 10, (4, 7), (5, 2), (), (5, 1, 7))
        ),
        *(
            ("stream_q", {"t": t}, "t is the whole number of steps")
            for t in (-1, 2.5, [1], "1", np.array([1, 2, 3]), torch.tensor(2.5), torch.tensor([1, 2]))
        ),
    ],
)
def test_what_is_no_goal_or_time_is_refused(script, more, said, tmp_path):
    policy = load_policy(written(tmp_path / "p.safetensors", trained(script), script=script), seed=1)
    with pytest.raises(ValueError, match=said):
        policy(OBS[1], **more)


@pytest.mark.parametrize("t", [np.int64(3), np.array(3), torch.tensor(3)])
def test_a_time_may_be_any_whole_number(t, tmp_path):
    policy = load_policy(written(tmp_path / "p.safetensors", trained("stream_q"), script="stream_q"), seed=1)
    assert torch.equal(policy(OBS[1], t=t), policy(OBS[1], t=3))


def test_one_goal_serves_all_observations(tmp_path):
    policy = load_policy(written(tmp_path / "p.safetensors", trained("gcbc"), script="gcbc"), seed=1)
    each = policy(OBS[1], goal=GOAL[1, :1].expand(5, 7))
    for goal in (GOAL[1, 0], GOAL[1, :1]):
        assert torch.equal(policy(OBS[1], goal=goal), each)


def test_a_goal_that_is_a_position_may_be_a_whole_state(tmp_path):
    agent = agent_of("gcbc", seeds=(1,), goal="position")
    policy = load_policy(written(tmp_path / "p.safetensors", agent, script="gcbc"))
    assert torch.equal(policy(OBS[1], goal=GOAL[1]), policy(OBS[1], goal=GOAL[1, :, :2]))
    with pytest.raises(ValueError, match="a goal has 2 or 7 numbers"):
        policy(OBS[1], goal=GOAL[1, :, :3])


def test_arrays_of_any_strides_and_kinds_are_observations(sac, tmp_path):
    policy = load_policy(written(tmp_path / "p.safetensors", sac), seed=1)
    obs = OBS[1].numpy()
    expected = policy(obs)
    np.testing.assert_array_equal(policy(obs[::-1]), expected[::-1])
    for same in (obs.astype(">f4"), obs.astype(object), np.asfortranarray(obs), obs.tolist()):
        np.testing.assert_allclose(policy(same), expected, rtol=1e-6)


@pytest.mark.parametrize("device", ["tpu", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_not_the_files_fault(device, sac, tmp_path):
    path = written(tmp_path / "p.safetensors", sac)
    with pytest.raises(UserError, match=rf"^the device {device} cannot be used"):
        load_policy(path, seed=1, device=device)


@pytest.mark.parametrize("script", ["stream_q", "gcbc"])
def test_observations_and_goals_that_are_not_finite_are_refused(script, tmp_path):
    """Numbered actions would not show them. Tensors are not looked at, for which a GPU would have to be waited for."""
    policy = load_policy(written(tmp_path / "p.safetensors", trained(script), script=script), seed=1)
    more = {"goal": np.zeros(7)} if policy.with_goals else {"t": 1}
    for bad in (np.nan, np.inf, 1e39):  # the last is infinite in float32
        with pytest.raises(ValueError, match="must have finite numbers"):
            policy([bad, *[0.0] * 6], **more)
        if policy.with_goals:
            with pytest.raises(ValueError, match="must have finite numbers"):
                policy(np.zeros(7), goal=[bad] * 7)
    policy(torch.full((7,), torch.nan), **more)


def test_a_path_may_be_any_text():
    with pytest.raises(UserError, match=r"^there is no file or folder xxx"):
        load_policy("x" * 5_000)


def test_a_learners_file_is_no_policys(tmp_path):
    agent = agent_of("stream_q", seeds=(1,))
    (tmp_path / "learner.safetensors").write_bytes(learner_file(agent))
    with pytest.raises(UserError, match=r"holds streaming learners, and no policies$"):
        load_policy(tmp_path / "learner.safetensors")
    written(tmp_path / "policy.safetensors", agent, script="stream_q")
    with pytest.raises(UserError, match=r"holds streaming learners: take .*policy.safetensors$"):
        load_policy(tmp_path / "learner.safetensors")


def test_images_act_as_they_do_one_by_one():
    task = Task("Made-v0", (4, 10, 10), 3, True, (), (), 50)
    agent = agent_of("stream_q", seeds=(0, 1), task=task, hidden=())
    with torch.no_grad():
        for parameter in agent.critic.parameters():
            parameter.normal_()
    images = torch.rand(2, 6, 400)
    features = agent.features.seen(images, torch.tensor(3))
    alone = torch.stack([agent.critic(features[:, i]) for i in range(6)], 1)
    rounding = 1e-5 * alone.abs().max().item()  # of sums of large terms, which may cancel
    torch.testing.assert_close(agent.critic(features), alone, rtol=0, atol=rounding)
    assert torch.equal(agent.policy(images, torch.tensor(3)), alone.argmax(-1))


def test_a_streaming_policy_sees_what_its_learner_saw():
    agent = trained("stream_ac discrete")
    obs, where = torch.randn(3, 7, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    agent.features.start(obs, where)
    for t in (1, 2, 3):
        seen = agent.features.seen(obs[:, None], torch.tensor(t))
        last = agent.features(obs)
        torch.testing.assert_close(seen[:, 0, -1], last[:, -1])
        now = agent.features.statistics.normalise(obs)  # the learner has counted this observation
        torch.testing.assert_close(agent.features.seen(obs[:, None], torch.tensor(t))[:, 0, :-1], now)
        torch.testing.assert_close(now, last[:, :-1])


@pytest.mark.parametrize(
    ("script", "more"),
    [
        ("sac", {}),
        ("dqn", {}),
        ("ppo", {}),
        ("sqirl table", {}),
        ("sqirl", {}),
        ("gorp", {}),
        ("iql", EVALUATED | {"standardise": True}),
        ("gcbc", EVALUATED_WITH_GOALS),
        ("stream_ac", {}),
    ],
)
def test_a_run_leaves_policies_that_repeat_its_last_evaluation(script, more, train_short, request):
    if script == "gcbc":
        pytest.importorskip("ogbench")
        request.getfixturevalue("short_ways_to_goals")
    result = train_short(script, seeds=("0", "3"), **more)
    trained = Trained(result.folder) if len(result.eval) else None
    if script == "stream_ac":  # it is not evaluated
        assert PolicyFile(result.folder).environment["env_id"] == "InvertedPendulum-v5"
        return
    assert trained
    policy = trained.file.policy()
    evaluator = Place(trained).evaluator(policy, result.config["args"]["eval_episodes"])
    last = result.eval[result.eval["step"] == result.eval["step"].max()]
    totals = [score.total for scores in evaluator(policy.act, int(last["step"].iloc[0])) for score in scores]
    assert totals == last["return"].tolist()
    if script == "gcbc":  # whose returns are all the same
        ways, xy = pd.read_parquet(result.folder / "ways.parquet").query("step >= 0"), evaluator.ways.obs[..., :2]
        np.testing.assert_array_equal(xy[np.isfinite(xy[..., 0])], ways[["x", "y"]])
        assert ways.groupby(["seed", "task"])["x"].nunique().min() > 1


def test_a_finished_run_of_an_earlier_version_gets_its_policies_from_the_checkpoint(train_short, capsys):
    result = train_short("sac")
    before, said = contents(result.folder / "policy.safetensors")
    (result.folder / "policy.safetensors").unlink()
    (path,) = (result.folder / "checkpoint").glob("*.json")
    values = json.loads(path.read_text())
    later = {"phase_seconds", "evaluation_rows", "train_rows"}  # entries of later versions
    path.write_text(json.dumps({name: value for name, value in values.items() if name not in later}))
    with pytest.raises(UserError, match="with --resume writes the file"):
        PolicyFile(result.folder)
    config = (result.folder / "config.json").read_bytes()
    train_short("sac", resume=True)
    after, says = contents(result.folder / "policy.safetensors")
    assert says == said and after.keys() == before.keys() and all(torch.equal(after[n], before[n]) for n in before)
    assert (result.folder / "config.json").read_bytes() == config
    (result.folder / "policy.safetensors").unlink()
    shutil.rmtree(result.folder / "checkpoint")
    capsys.readouterr()
    train_short("sac", resume=True)
    assert "has lost its checkpoint, so that policy.safetensors cannot be made" in capsys.readouterr().err


def changed(path, sac, metadata=None, tensors=None):
    """A good file with other metadata or tensors."""
    good, said = contents(written(path, sac))
    texts = {name: json.dumps(value) for name, value in (said | (metadata or {})).items()}
    path.write_bytes(save(good | (tensors or {}), texts))
    return path


def test_a_script_may_import_its_neighbour_and_one_that_fails_is_imported_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("algos.policy.SCRIPTS", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "neighbour_of_mine.py").write_text("value = 3")
    (tmp_path / "mine_too.py").write_text("from neighbour_of_mine import value\nraise KeyError")
    for _ in range(2):
        with pytest.raises(KeyError):
            script_module("mine_too")
    (tmp_path / "mine_too.py").write_text("from neighbour_of_mine import value\n")
    assert script_module("mine_too").value == 3


@pytest.mark.parametrize(
    "metadata",
    [
        {"script": "../evil"}, {"script": "../algos/policy"}, {"script": "none"}, {"script": None},
        {"algorithm": "Tensor"}, {"algorithm": "cli"},
        {"args": {"hidden": [10**6]}}, {"args": {"nonsense": 1}}, {"args": 3}, {"runs": []}, {"runs": [{}]},
        {"task": {}}, {"adapted": 1}, {"diverged": "x"}, {"environment": 3}, {"step": "x"},
        {"environment": {"options": 3}}, {"environment": {"env_id": 5}}, {"diverged": [99]},
        {"runs": [{"seed": -1}] * 3},
    ],
)  # fmt: skip
def test_metadata_of_a_policy_is_refused(metadata, sac, tmp_path):
    path = changed(tmp_path / "p.safetensors", sac, metadata)
    if metadata == {"adapted": 1}:  # it means that nothing is scaled, and that actions are clipped
        assert load_policy(path, seed=1)(OBS[1]).abs().max() <= 1
        return
    with pytest.raises(UserError, match="which is not in" if "script" in metadata else "is no policy's file"):
        PolicyFile(path).policy([0])


@pytest.mark.parametrize(
    "tensors",
    [
        {"agent/actor.net.out.bias": torch.zeros(3, 1, 4, dtype=torch.float64)},
        {"agent/actor.net.out.bias": torch.zeros(3, 1, 9)},
        {"agent/actor.net.out.bias": torch.zeros(1, 1, 4)},
        {"agent/actor.nothing": torch.zeros(3)},
    ],
)
def test_tensors_of_a_policy_are_refused(tensors, sac, tmp_path):
    with pytest.raises(UserError, match="is no policy's file"):
        PolicyFile(changed(tmp_path / "p.safetensors", sac, tensors=tensors)).policy([2])


def test_bytes_that_are_no_policy_are_refused(sac, tmp_path):
    path = written(tmp_path / "p.safetensors", sac)
    whole = path.read_bytes()
    for data in (b"", b"text", whole[:100], whole[:-1], whole + b"x"):
        path.write_bytes(data)
        with pytest.raises(UserError, match="is no policy's file"):
            PolicyFile(path)


def test_a_file_that_lacks_a_tensor_is_refused(sac, tmp_path):
    tensors, said = contents(written(tmp_path / "p.safetensors", sac))
    del tensors["agent/actor.net.out.bias"]
    (tmp_path / "p.safetensors").write_bytes(save(tensors, {k: json.dumps(v) for k, v in said.items()}))
    with pytest.raises(UserError, match=r"it lacks actor\.net\.out\.bias"):
        load_policy(tmp_path / "p.safetensors", seed=1)


def test_actions_do_not_leave_their_bounds_by_rounding():
    from sac import SAC, Args

    low, high = np.float32([-0.7, 0]), np.float32([0.1, 2])
    task = Task("Made-v0", (3,), 2, False, tuple(low.tolist()), tuple(high.tolist()), 0)
    most = torch.from_numpy((high + low) / 2 + (high - low) / 2)
    assert (most.numpy() > high).any()
    policy = Policy(SAC(Args(hidden=(8, 8)), task, [0]), lambda obs: most.expand(1, obs.shape[1], 2))
    assert (policy(np.zeros((5, 3))) <= high).all() and policy(torch.zeros(3)).tolist() == high.tolist()
    assert (Batched(policy)(torch.zeros(5, 3)).numpy() <= high).all()  # which is exported
    tenth = np.float32(0.1)  # greater than 0.1
    assert inside((0.1, 0.5), -np.inf).tolist() == [float(np.nextafter(tenth, np.float32(0))), 0.5]
    assert inside((-0.1, 0.1), np.inf).tolist() == [-float(np.nextafter(tenth, np.float32(0))), float(tenth)]


def content_of(agent, script="td3_bc"):
    return policy_file(agent, agent.policy, script, {"env_id": "", "options": {}, "tasks": []}, 0)


def test_policies_are_tried_before_they_learn(capsys, monkeypatch):
    """Here, the policy reads a number that only its maker knows."""
    own = td3_bc.TD3BC.policy
    monkeypatch.setattr("td3_bc.TD3BC.policy", lambda agent, obs: getattr(agent, "scale", 1.0) * own(agent, obs))
    agent = agent_of("td3_bc", seeds=(3, 7, 11))
    check_policies(agent, content_of(agent))
    assert not capsys.readouterr().err
    agent.scale = 0.5
    check_policies(agent, content_of(agent))
    assert "warning: policy.safetensors will hold policies that act otherwise than" in capsys.readouterr().err


def test_a_trial_that_reads_no_policies_says_so(capsys, monkeypatch, tmp_path):
    agent = agent_of("td3_bc")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    check_policies(agent, content_of(agent, "nowhere"))
    said = capsys.readouterr().err
    assert "warning: nothing will be able to load the policies of this run (" in said and str(tmp_path) not in said
    other = policy_file(agent, agent.policy, "td3_bc", {"env_id": "", "options": {}, "tasks": []}, 0, (), "0123")
    check_policies(agent, other)
    told = "warning: policies will be read with single_file/td3_bc.py, which is not the script of this run\n"
    assert capsys.readouterr().err == told
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "full"))
    check_policies(agent, content_of(agent))  # there is no room for a trial
    assert not capsys.readouterr().err


def test_a_policy_that_takes_whole_numbers_only_is_tried_at_zeros():
    agent, seen = agent_of("td3_bc"), []

    def policy(obs):
        seen.append(obs)
        assert not (obs % 1).any()
        return obs[..., :2]

    agent.policy = policy
    check_policies(agent, content_of(agent_of("td3_bc")))
    assert len(seen) == 2 and not seen[0].any() and seen[1].any()


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (lambda obs: obs[..., :2], r"the shape \[2, 1, 2\]"),
        (lambda obs: obs[..., :1].transpose(0, 1), r"the shape \[1, 2, 1\]"),
        (lambda obs: obs[..., :1].numpy(), "the type ndarray"),
    ],
)
@pytest.mark.usefixtures("policies_are_tried")
def test_policies_of_other_sizes_are_refused_before_the_run(act, found, train_short, monkeypatch):
    monkeypatch.setattr("td3_bc.TD3BC.policy", lambda agent, obs: act(obs))
    with pytest.raises(ValueError, match=rf"policy must give a tensor \[2, 1, 1\] for observations .*, got {found}"):
        train_short("td3_bc", seeds=("0", "1"))


@pytest.mark.usefixtures("policies_are_tried")
@pytest.mark.parametrize("script", ["sqirl", "sqirl table", "gorp"])
def test_policies_on_tables_are_tried_too(script, train_short, capsys):
    result = train_short(script, seeds=("0", "1"))
    assert result.code == 0 and "polic" not in capsys.readouterr().err
