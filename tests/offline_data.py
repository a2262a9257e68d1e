"""Tiny datasets, agents on them, and the implicit methods written once more, for one run, in torch's own parts."""

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scripts import agent_type, assert_same, layers_of, module_of
from torch import Tensor, nn

from algos.data import Dataset
from algos.optim import Adam, cosine
from algos.random import Random
from algos.replay import Batch

BATCH = 8


def at_random(count: int = 64, obs_size: int = 3, act_size: int = 2, seed: int = 0) -> Dataset:
    """Standard normal numbers and actions in [-1, 1]; about every sixth transition is terminal."""
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.standard_normal((2, count, obs_size))
    action = rng.uniform(-1, 1, (count, act_size))
    return Dataset.of(obs, action, rng.standard_normal(count), next_obs, rng.random(count) < 1 / 6)


def offline_agent(script: str, data: Dataset | None = None, seeds: tuple[int, ...] = (0, 1), **overrides: Any) -> Any:
    """An agent of a script for data, by default `at_random`.

    It has a small batch, small networks, and otherwise the defaults of its script where `overrides` do not name others;
    agents of `scripts.agent_of` have the arguments of a short run.
    """
    args = module_of(script).Args(**{"batch_size": BATCH, "hidden": (8, 6), **overrides})
    return agent_type(script)(args, (data or at_random()).task, seeds)


def batch_of(data: Dataset, seed: int = 0, size: int = BATCH) -> Batch:
    """A batch [2, size, ...] of random transitions."""
    integers = torch.randint(1 << 40, (2, size), generator=torch.Generator().manual_seed(seed))
    return data.gather(data.choose(integers))


def draws_of(agent: Any, **given: Tensor) -> Any:
    """The first draws of an agent, in which those that are given take the place of its own."""
    draws = agent.draws(Random(agent.seeds))()
    return draws._replace(**given) if given else draws


@contextlib.contextmanager
def seen_data() -> Iterator[list[Dataset]]:
    """The datasets from which a script takes its batches, in order."""
    seen: list[Dataset] = []
    gather = Dataset.gather
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dataset, "gather", lambda data, indices: seen.append(data) or gather(data, indices))
        yield seen


def write_hdf5(path: Path, episodes: int = 30, length: int = 10, obs_size: int = 4, act_size: int = 1, seed: int = 0):
    """A file of D4RL's layout: episodes of which every other one terminates, the others time out."""
    rng = np.random.default_rng(seed)
    count = episodes * length
    obs = rng.standard_normal((episodes, length + 1, obs_size)).astype(np.float32)
    last = np.zeros((episodes, length), bool)
    last[:, -1] = True
    ends = last & (np.arange(episodes) % 2 == 0)[:, None]
    with h5py.File(path, "w") as file:
        file["observations"] = obs[:, :-1].reshape(count, obs_size)
        file["next_observations"] = obs[:, 1:].reshape(count, obs_size)
        file["actions"] = rng.uniform(-1, 1, (count, act_size)).astype(np.float32)
        file["rewards"] = rng.standard_normal(count).astype(np.float32)
        file["terminals"], file["timeouts"] = ends.reshape(-1), (last & ~ends).reshape(-1)
    return path


# -- the value losses as functions of one number V ---------------------------------------------------------------------


def derivative(loss: Callable[[Tensor], Tensor], q: Tensor, value: Tensor) -> Tensor:
    """d/dV of the mean loss of q [R, n] - V [R]: [R]."""
    value = value.clone().requires_grad_()
    per_run = loss(q - value[:, None])
    return torch.autograd.grad((per_run if per_run.dim() == 1 else per_run.mean(-1)).sum(), value)[0]


def trained_value(loss: Callable[[Tensor], Tensor], q: list[float], start: float = 0.0) -> float:
    """V that Adam finds on the mean loss of q - V."""
    samples, value = torch.tensor([q]), torch.tensor([start], requires_grad=True)
    adam = Adam([value], lr=0.2, schedule=cosine(600))
    for _ in range(600):
        adam.step([derivative(loss, samples, value.detach())])
    return value.item()


def chain_values(loss: Callable[[Tensor], Tensor]) -> Tensor:
    """V [5] of the chain whose right end pays 1, under uniform steps: V = argmin of the loss, Q = r + 0.9 V(s')."""
    value = torch.zeros(5)
    for _ in range(100):
        left = 0.9 * torch.cat([value[:1], value[:-1]])
        right = torch.cat([0.9 * value[1:], torch.ones(1)])
        q, low, high = torch.stack([left, right], 1), torch.full((5,), -0.5), torch.full((5,), 1.5)
        for _ in range(20):
            middle = (low + high) / 2
            above = derivative(loss, q, middle) > 0
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        value = (low + high) / 2
    return value


# -- learning ----------------------------------------------------------------------------------------------------------


def chain_data(count: int = 20_000) -> Dataset:
    """Uniform transitions of the chain of `chain_values`: one-hot states, to the right by actions above 0."""
    rng = np.random.default_rng(0)
    state, action = rng.integers(5, size=count), rng.uniform(-1, 1, (count, 1))
    after = np.maximum(np.where(action[:, 0] > 0, state + 1, state - 1), 0)
    end = after == 5
    return Dataset.of(np.eye(5)[state], action, end, np.eye(5)[np.minimum(after, 4)], end)


def learned_chain(script: str, updates: int = 400, **overrides: Any) -> tuple[Tensor, Tensor]:
    """Mean actions [R, 5] and values [R, 5] of a script's agent after updates on the chain."""
    settings = {"batch_size": 256, "hidden": (32,), "discount": 0.9, "lr": 5e-3, "tau": 0.05, "temperature": 10.0}
    data = chain_data()
    agent = offline_agent(script, data, **settings | overrides)
    draws = agent.draws(Random(agent.seeds))
    for k in range(updates):
        agent.update(batch_of(data, k, 256), draws())
    states = torch.eye(5).expand(2, 5, 5)
    with torch.no_grad():
        return agent.actor(states).squeeze(-1), agent.value(states)


# -- one run, plainly --------------------------------------------------------------------------------------------------


class Plain:
    """Run `run` of an implicit method's agent: V, then actor, then critics, then target critics."""

    def __init__(self, agent: Any, run: int, value_loss: Callable, decay: int = 0):
        self.args, self.run, self.value_loss, self.decay, self.updates = agent.args, run, value_loss, decay, 0
        self.actor, self.value = layers_of(agent.actor.net, run), layers_of(agent.value.net, run)
        self.log_std = nn.Parameter(agent.actor.log_std[run, 0].detach().clone())
        self.critics = [layers_of(agent.critic.net, run, e) for e in range(2)]
        self.targets = [layers_of(agent.critic.net, run, e) for e in range(2)]
        lr = agent.args.lr
        self.actor_adam = torch.optim.Adam([*self.actor.parameters(), self.log_std], lr=lr)
        self.value_adam = torch.optim.Adam(self.value.parameters(), lr=lr)
        self.critic_adam = torch.optim.Adam([p for net in self.critics for p in net.parameters()], lr=lr)

    def target_q(self, obs: Tensor, action: Tensor) -> Tensor:
        with torch.no_grad():
            both = [net(torch.cat([obs, action], -1)).squeeze(-1) for net in self.targets]
            return torch.minimum(*both)

    def learn_value(self, obs: Tensor, action: Tensor, times: int = 1) -> None:
        for _ in range(times):
            self.descend(
                self.value_adam, self.value_loss(self.target_q(obs, action) - self.value(obs).squeeze(-1)).mean()
            )

    def learn_actor(self, obs: Tensor, action: Tensor, uniform: Tensor | None) -> None:
        """uniform [layers, B, H]: what dropout keeps is where it is at least the rate."""
        with torch.no_grad():
            gap = self.target_q(obs, action) - self.value(obs).squeeze(-1)
            weight = torch.minimum(torch.exp(self.args.temperature * gap), torch.tensor(100.0))
        x, layer = obs, 0
        for module in self.actor:
            x = module(x)
            if uniform is not None and isinstance(module, nn.ReLU):
                keep = uniform[layer, :, : x.shape[-1]] >= self.args.dropout
                x, layer = torch.where(keep, x / (1 - self.args.dropout), 0.0), layer + 1
        policy = torch.distributions.Normal(torch.tanh(x), self.log_std.clamp(-5, 2).exp())
        if self.decay:
            rate = 0.5 * self.args.lr * (1 + math.cos(math.pi * self.updates / self.decay))
            self.actor_adam.param_groups[0]["lr"] = rate
        self.descend(self.actor_adam, -(weight * policy.log_prob(action).sum(-1)).mean())

    def learn_critics(self, loss: Callable[[Callable[[Tensor, Tensor], Tensor]], Tensor]) -> None:
        """loss: of a critic, which is a function of obs and action; then the targets move."""
        nets = [lambda obs, action, net=net: net(torch.cat([obs, action], -1)).squeeze(-1) for net in self.critics]
        self.descend(self.critic_adam, loss(nets[0]) + loss(nets[1]))
        tau = self.args.tau
        for online, target in zip(self.critics, self.targets, strict=True):
            for a, b in zip(online.parameters(), target.parameters(), strict=True):
                b.data.copy_(tau * a.data + (1 - tau) * b.data)
        self.updates += 1

    def update(self, batch: Any, critic_error: Callable, uniform: Tensor | None = None, **value: Any) -> None:
        """One update on the run's part of a batch; `value` are the obs, actions and times of V, if others."""
        run, discount = self.run, self.args.discount
        obs, action = batch.obs[run], batch.action[run]
        self.learn_value(**{"obs": obs, "action": action, **value})
        self.learn_actor(obs, action, uniform)
        with torch.no_grad():
            goes_on = discount * (1 - batch.terminated[run])
            target = batch.reward[run] + goes_on * self.value(batch.next_obs[run]).squeeze(-1)
        self.learn_critics(lambda q: critic_error(q(obs, action), target).mean())

    def assert_same(self, agent: Any) -> None:
        assert_same(agent.actor.net, self.actor, self.run)
        assert_same(agent.value.net, self.value, self.run)
        torch.testing.assert_close(agent.actor.log_std[self.run, 0], self.log_std, atol=1e-9, rtol=0)
        for e in range(2):
            assert_same(agent.critic.net, self.critics[e], self.run, e)
            assert_same(agent.target_critic.net.net, self.targets[e], self.run, e)

    @staticmethod
    def descend(adam: torch.optim.Adam, loss: Tensor) -> None:
        adam.zero_grad()
        loss.backward()
        adam.step()


def huber(q: Tensor, target: Tensor) -> Tensor:
    return F.huber_loss(q, target, delta=20.0, reduction="none")


def record(env_id, name, steps, seeds=(0,), **options):
    """A Minari dataset of an environment with random actions, an episode a seed; the actions [episodes, steps, A]."""
    import gymnasium as gym
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer

    env = gym.make(env_id, **options)
    env.action_space.seed(0)
    buffers = []
    for number, seed in enumerate(seeds):
        observations, columns = [env.reset(seed=seed)[0]], []
        for _ in range(steps):
            action = env.action_space.sample()
            obs, *rest, _ = env.step(action)
            observations.append(obs)
            columns.append((action, *rest))
        actions, rewards, terminations, truncations = (np.array(column) for column in zip(*columns, strict=True))
        truncations[-1] = not terminations[-1]
        buffers.append(
            EpisodeBuffer(
                id=number, observations=stacked(observations), actions=actions, rewards=rewards,
                terminations=terminations, truncations=truncations,
            )
        )  # fmt: skip
    minari.create_dataset_from_buffers(name, buffers, env=env)
    env.close()
    return np.stack([buffer.actions for buffer in buffers])


def stacked(values):
    """Observations one after the other, part by part."""
    if isinstance(values[0], dict):
        return {key: stacked([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(stacked(list(part)) for part in zip(*values, strict=True))
    return np.stack(values)
