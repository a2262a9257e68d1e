"""Recipes of locomotion data: what is recorded is what the environments did, and the same seed gives the same bytes."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from benchmarks.recipes import locomotion as module
from benchmarks.recipes.locomotion import Policy, locomotion, replayed, rollouts
from envs import SeededEnvs
from envs.mujoco import Simulator, quiet_mujoco


def same(a, b):
    return all(np.array_equal(x, y) for e, f in zip(a, b, strict=True) for x, y in zip(e[:5], f[:5], strict=True))


def actor(path, obs_size=11, act_size=3, log_std=-8.0):
    """A policy with random weights, hardly any noise, and bounds that are not 1."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(obs_size, 8), (8, 8), (8, 2 * act_size)]
    tensors = {f"weight.{i}": torch.randn(*size, generator=generator) for i, size in enumerate(sizes)}
    tensors |= {f"bias.{i}": torch.randn(size[1], generator=generator) for i, size in enumerate(sizes)}
    tensors["weight.2"][:, act_size:] = 0
    tensors["bias.2"][act_size:] = log_std
    tensors |= {"mean": torch.zeros(act_size), "scale": torch.full((act_size,), 0.4)}
    save_file(tensors, path, {"facts": json.dumps({"steps": 7, "return": 1.0})})
    return Policy(path), tensors


def test_the_number_of_steps_is_exact_and_episodes_end_as_they_did():
    episodes = list(locomotion("hopper", "random", 0, 1_003))
    assert sum(len(e.reward) for e in episodes) == 1_003
    for e in episodes:
        assert len(e.obs) == len(e.action) + 1 == len(e.reward) + 1 == len(e.terminated) + 1 == len(e.truncated) + 1
        assert not e.terminated[:-1].any() and not e.truncated[:-1].any()
        assert e.terminated[-1] != e.truncated[-1]
        assert e.obs.dtype == e.action.dtype == e.reward.dtype == np.float32
    cut = [e for e in episodes if e.truncated[-1]]
    assert 0 < len(cut) <= 10 and len(episodes) > 20  # the last of each of the ten lanes, unless it just fell


def test_episodes_come_in_the_order_in_which_they_begin():
    # in the order in which they end, the first ones would be the shortest, and a part of the data no fair sample
    episodes = list(locomotion("hopper", "random", 0, 3_000))
    starts = [e.obs[0] for e in locomotion("hopper", "random", 0, 10)]
    assert all(np.array_equal(e.obs[0], start) for e, start in zip(episodes[:10], starts, strict=True))
    busy = np.zeros(10, int)  # steps that each of the ten lanes has done when the next episode begins
    for e in episodes:
        busy[busy.argmin()] += len(e.reward)
    assert (busy == 300).all()


def test_a_recorded_episode_is_what_gymnasium_does_with_its_actions():
    episodes = list(rollouts("Hopper-v5", None, "test", 3, 200))
    with quiet_mujoco():
        env = gym.make("Hopper-v5").unwrapped
    e = max(episodes, key=lambda e: len(e.reward))
    env.reset(seed=0)
    for t, action in enumerate(e.action):
        # the root's x is not observed; nothing depends on it
        env.set_state(np.append(0.0, e.obs[t, :5]).astype(float), e.obs[t, 5:].astype(float))
        obs, reward, terminated, _, _ = env.step(action)
        np.testing.assert_allclose(obs, e.obs[t + 1], atol=2e-3)
        np.testing.assert_allclose(reward, e.reward[t], atol=2e-3)
        assert terminated == e.terminated[t]
    env.close()


def test_the_same_seed_gives_the_same_bytes_and_another_does_not():
    first, again, other = (list(locomotion("halfcheetah", "random", seed, 300)) for seed in (0, 0, 1))
    assert same(first, again)
    assert not np.array_equal(first[0].obs, other[0].obs)


def test_lanes_of_one_seed_differ():
    episodes = list(locomotion("halfcheetah", "random", 0, 100))
    assert len({e.obs[0].tobytes() for e in episodes}) == 10
    assert len({e.action[0].tobytes() for e in episodes}) == 10


def test_a_policy_acts_as_its_tensors_say(tmp_path):
    policy, t = actor(tmp_path / "p.safetensors")
    obs = np.random.default_rng(0).standard_normal((5, 11))
    x = torch.tensor(obs, dtype=torch.float32)
    for i in (0, 1):
        x = torch.relu(x @ t[f"weight.{i}"] + t[f"bias.{i}"])
    mean = (x @ t["weight.2"] + t["bias.2"])[:, :3]
    np.testing.assert_allclose(policy.sample(obs, np.zeros((5, 3))), 0.4 * torch.tanh(mean).numpy(), rtol=1e-6)
    std = np.exp(-5 + 3.5 * (np.tanh(-8.0) + 1))
    expected = 0.4 * torch.tanh(mean + std * 2).numpy()
    np.testing.assert_allclose(policy.sample(obs, np.full((5, 3), 2.0)), expected, rtol=1e-5)


def test_medium_expert_is_medium_and_then_expert(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "POLICIES", tmp_path)
    actor(tmp_path / "hopper-medium.safetensors")
    actor(tmp_path / "hopper-expert.safetensors", log_std=0.0)
    both = list(locomotion("hopper", "medium-expert", 0, 61))
    medium, expert = list(locomotion("hopper", "medium", 0, 31)), list(locomotion("hopper", "expert", 0, 30))
    assert same(both, medium + expert)


def replay_of(seed, steps):
    """The rows of the replay buffer of a run with random actions, and the numbers of its episodes' last steps."""
    envs, generator = SeededEnvs("Hopper-v5", [seed]), torch.Generator().manual_seed(0)
    rows, ends = [], []
    for step in range(steps):
        obs, action = envs.obs.reshape(1, -1).clone(), torch.rand(1, 1, 3, generator=generator) * 2 - 1
        envs.send(action)
        t = envs.receive()
        parts = (obs, action[0], t.reward, t.next_obs[0], t.terminated)
        rows.append(torch.cat([part.reshape(1, -1) for part in parts], 1).numpy().copy())
        if t.terminated.any():
            ends.append(step)
    envs.close()
    return np.concatenate(rows), ends


def test_a_replay_falls_into_the_episodes_it_was_made_of():
    rows, ends = replay_of(3, 150)
    episodes = list(replayed(rows, "Hopper-v5", 3))
    lengths = np.cumsum([len(e.reward) for e in episodes])
    assert len(ends) > 3 and lengths.tolist() == [*(end + 1 for end in ends), 150]
    assert np.array_equal(np.concatenate([e.obs[:-1] for e in episodes]), rows[:, :11])
    assert np.array_equal(np.concatenate([e.obs[1:] for e in episodes]), rows[:, 15:26])
    assert np.array_equal(np.concatenate([e.reward for e in episodes]), rows[:, 14])
    assert all(e.terminated[-1] for e in episodes[:-1]) and episodes[-1].truncated[-1]
    with pytest.raises(ValueError, match="step 0 leads elsewhere"):
        list(replayed(rows, "Hopper-v5", 4))


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Hopper-v5", "Walker2d-v5"])
def test_recorded_states_lead_to_what_was_recorded(env_id):
    simulator = Simulator(env_id)
    for e in rollouts(env_id, None, "test", 0, 300):
        states = np.concatenate([e.infos["qpos"], e.infos["qvel"]], 1)
        assert np.array_equal(simulator.observe(states).astype(np.float32), e.obs[:-1])
        _, obs, reward, terminated = simulator.step(states, e.action)
        np.testing.assert_allclose(obs, e.obs[1:], atol=1e-5)
        np.testing.assert_allclose(reward, e.reward, atol=1e-5)
        assert np.array_equal(terminated, e.terminated)
    simulator.close()


def test_the_states_of_a_replay_are_those_of_its_run():
    rows, _ = replay_of(3, 150)
    simulator = Simulator("Hopper-v5")
    for e in replayed(rows, "Hopper-v5", 3):
        states = np.concatenate([e.infos["qpos"], e.infos["qvel"]], 1)
        np.testing.assert_allclose(simulator.step(states, e.action)[1], e.obs[1:], atol=1e-5)
    simulator.close()


def test_names_that_are_none_are_refused():
    with pytest.raises(ValueError, match="no such recipe: hopper-good"):
        locomotion("hopper", "good", 0, 10)


def test_the_policies_of_all_tasks_ship():
    there = {path.name for path in module.POLICIES.iterdir()}
    of_tasks = {f"{task}-{quality}.safetensors" for task in module.TASKS for quality in ("medium", "expert")}
    assert there == of_tasks | {"ant-direction-expert.safetensors"}


@pytest.mark.parametrize("steps", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", sorted(module.POLICIES.glob("[!a]*.safetensors")), ids=lambda path: path.stem)
def test_policies_that_ship_are_small_say_how_they_were_made_and_are_as_good_as_they_say(path, steps):
    assert path.stat().st_size <= 400_000
    policy = Policy(path)
    task, quality = path.stem.split("-")
    assert quality in ("medium", "expert") and policy.training["env_id"] == module.TASKS[task]
    command = policy.training["command"].split()
    assert command[:2] == ["python", "single_file/sac.py"]
    assert command[command.index("--total-steps") + 1] == str(policy.training["steps"])
    total = sum(e.reward.sum() for e in rollouts(policy.training["env_id"], policy, "test", 0, steps))
    assert (
        total / steps * 1_000 > 0.5 * policy.training["return"]
    )  # per 1,000 steps: noise costs some, a wrong layer all
