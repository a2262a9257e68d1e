"""Streaming learners by themselves: files of many runs and settings, what they refuse, and that they go on exactly."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scripts import Feed, agent_of, agent_type, learn, same, state_of, task_of
from torch.utils._pytree import tree_map_only

from algos.errors import UserError
from algos.learner import Learner, learner_file
from algos.policy import policy_file
from algos.stream import Step

STREAMS = ["stream_ac", "stream_ac discrete", "stream_q", "stream_q sarsa", "stream_td"]


def written(path, agent):
    path.write_bytes(learner_file(agent))
    return path


@pytest.mark.parametrize("script", STREAMS)
def test_a_learner_is_one_run_of_the_file(script, tmp_path):
    """It has the weights, traces, statistics and arguments of the run, and goes on as the run would."""
    agent = agent_of(script, seeds=(5, 6, 7))
    learn(agent)
    learner = Learner.load(written(tmp_path / "file", agent), agent_type(script), seed=6)
    assert learner.agent.seeds == [6] and learner.agent.args.hidden == agent.args.hidden
    assert all(same(tensor, state_of(agent)[name][1:2]) for name, tensor in state_of(learner.agent).items())

    feed = Feed(agent)
    for (step, draws), _ in zip(feed, range(10), strict=False):
        agent.update(Step(step.reward, step.next_obs, torch.zeros(3, dtype=torch.float64)), draws)
        learner.draws = lambda draws=draws: tree_map_only(torch.Tensor, lambda x: x[1:2], draws)
        output = learner.step(step.next_obs[1].numpy(), float(step.reward[1]), False)
        np.testing.assert_allclose(output, agent.output[1].numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("script", "name"), [("stream_ac", "kappa_actor"), ("stream_q", "trace"), ("stream_td", "kappa")]
)
def test_a_setting_of_a_grid_is_chosen_by_its_values(script, name, tmp_path):
    agent = agent_of(script, seeds=(5, 6), vary=(f"{name}=0.5,0.75",))
    learn(agent)
    path, kind = written(tmp_path / "file", agent), agent_type(script)
    for run, (value, seed) in enumerate(((0.5, 5), (0.5, 6), (0.75, 5), (0.75, 6))):
        learner = Learner.load(path, kind, seed=seed, **{name: value})
        assert getattr(learner.agent.args, name) == value and learner.agent.seeds == [seed]
        assert all(same(t, state_of(agent)[n][run : run + 1]) for n, t in state_of(learner.agent).items())
        learner.start([0.0] * 7)
        assert learner.step([1.0] * 7, 1.0, False) is not None
        learner.save(tmp_path / "one")
        for more in (
            {},
            {"seed": seed},
            {"seed": seed, name: value},
        ):  # the call that loaded the first loads the second
            again = Learner.load(tmp_path / "one", kind, **more)
            assert getattr(again.agent.args, name) == value and again.setting == {name: value}
    with pytest.raises(UserError, match=rf"holds seed 5, {name} 0.5; .*: say which$"):
        Learner.load(path, kind, seed=5)
    with pytest.raises(UserError, match="say which"):
        Learner.load(path, kind, **{name: 0.5})
    with pytest.raises(UserError, match="there is none with"):
        Learner.load(path, kind, seed=5, **{name: 0.6})
    with pytest.raises(UserError, match=rf"holds runs that differ in seed, {name}, and not in misspelt$"):
        Learner.load(path, kind, seed=5, misspelt=0.5)


def test_another_algorithms_file_and_a_damaged_one_are_refused(tmp_path):
    path = written(tmp_path / "file", agent_of("stream_q", seeds=(1,)))
    with pytest.raises(UserError, match="holds a learner of StreamQ, not of StreamAC"):
        Learner.load(path, agent_type("stream_ac"))
    (tmp_path / "broken").write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="is no streaming learner's file"):
        Learner.load(tmp_path / "broken", agent_type("stream_q"))
    with pytest.raises(UserError, match=r"^there is no file .*nothing$"):
        Learner.load(tmp_path / "nothing", agent_type("stream_q"))
    agent = agent_of("stream_ac", seeds=(1,))
    environment = {"env_id": "", "options": {}, "tasks": []}
    (tmp_path / "policy").write_bytes(policy_file(agent, agent.policy, "stream_ac", environment, 0, []))
    with pytest.raises(UserError, match=r"policy holds policies, and no streaming learner$"):
        Learner.load(tmp_path / "policy", agent_type("stream_ac"))
    path.rename(tmp_path / "learner.safetensors")
    with pytest.raises(UserError, match=r"policy holds policies: take .*learner.safetensors$"):
        Learner.load(tmp_path / "policy", agent_type("stream_ac"))


def test_a_run_that_has_diverged_is_not_loaded(tmp_path):
    agent = agent_of("stream_td", seeds=(1, 2))
    with torch.no_grad():
        agent.critic.out.bias[0] = math.nan
    path = written(tmp_path / "file", agent)
    Learner.load(path, agent_type("stream_td"), seed=2)
    with pytest.raises(UserError, match=r"seed 1 .* has diverged"):
        Learner.load(path, agent_type("stream_td"), seed=1)


def test_a_folder_stands_for_its_file(tmp_path):
    written(tmp_path / "learner.safetensors", agent_of("stream_q", seeds=(1,)))
    assert Learner.load(tmp_path, agent_type("stream_q")).agent.seeds == [1]


@pytest.mark.parametrize("shape", [(10, 10, 4), (20, 20), (10, 4, 10), (2, 4, 10, 10), (399,), ()])
def test_images_of_another_layout_are_refused(shape):
    task = replace(task_of("stream_q"), obs_shape=(4, 10, 10))
    image, states = np.random.default_rng(0).random((4, 10, 10)), []
    for obs in (image, image.ravel(), torch.tensor(image, requires_grad=True)[None]):
        learner = Learner(agent_of("stream_q", (1,), task, hidden=()))
        learner.start(obs)
        learner.step(obs, 1.0, False)
        states.append(state_of(learner.agent))
    assert all(same(tensor, other[name]) for other in states[1:] for name, tensor in states[0].items())
    told = r"an observation has 400 numbers or the shape \(4, 10, 10\), the channels first, got"
    with pytest.raises(ValueError, match=f"{told}|takes one observation"):
        learner.start(np.zeros(shape))


def test_a_step_without_an_episode_is_refused(tmp_path):
    learner = Learner(agent_of("stream_ac", seeds=(3,)))
    with pytest.raises(ValueError, match="no episode is going on"):
        learner.step([1.0] * 7, 1.0, False)
    learner.start([0.0] * 7)
    reward = torch.tensor(2.0, requires_grad=True)
    assert learner.step(torch.ones(7), reward, torch.tensor(False)) is not None
    assert learner.step([1.0] * 7, np.array([1.0]), np.array([True])) is None
    before = {name: tensor.clone() for name, tensor in state_of(learner.agent).items()}
    learner.save(tmp_path / "saved")
    for one in (learner, Learner.load(tmp_path / "saved", agent_type("stream_ac"))):
        with pytest.raises(ValueError, match=r"no episode is going on: begin one with start\(obs\)"):
            one.step([1.0] * 7, 1.0, False)
    assert all(same(tensor, before[name]) for name, tensor in state_of(learner.agent).items())
    learner.start([0.0] * 7)
    assert learner.step([1.0] * 7, 1.0, False) is not None
    for name, reward, done in (("reward", np.nan, 0), ("reward", None, 0), ("reward", [1, 2], 0), ("done", 1.0, None)):
        with pytest.raises(ValueError, match=f"{name} must be a finite number"):
            learner.step([1.0] * 7, reward, done)


def test_a_learner_that_cannot_be_saved_names_its_file(tmp_path):
    """And not the one beside it, to which it is written first."""
    learner = Learner(agent_of("stream_ac", seeds=(0,), task=task_of("stream_ac")))
    with pytest.raises(FileNotFoundError) as error:
        learner.save(tmp_path / "missing" / "l.safetensors")
    assert error.value.filename == str(tmp_path / "missing" / "l.safetensors")
    with pytest.raises(OSError, match="directory") as error:
        learner.save(tmp_path)
    assert (error.value.filename, error.value.filename2) == (str(tmp_path), None)


@pytest.mark.parametrize("script", STREAMS)
def test_a_saved_learner_goes_on_exactly(script, tmp_path):
    learner = Learner(agent_of(script, seeds=(3,)))
    learner.start([0.0] * 7)
    for _ in range(3):
        learner.step([1.0] * 7, 1.0, False)
    learner.save(tmp_path / "saved")
    loaded = Learner.load(tmp_path / "saved", agent_type(script))
    for reward in (1.0, -1.0, 0.5):
        ours, theirs = (one.step([0.5] * 7, reward, False) for one in (learner, loaded))
        assert (ours == theirs).all()
    assert all(same(t, state_of(loaded.agent)[name]) for name, t in state_of(learner.agent).items())
