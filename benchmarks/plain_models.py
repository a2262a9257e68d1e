"""An ensemble and EDAC for one run, written plainly in torch's modules: what `benchmarks.throughput` compares with.

`PlainEnsemble` trains as OfflineRL-Kit (yihaosun1124/OfflineRL-Kit) does, and `PlainEDAC` makes updates as CORL's
edac.py does: with the same products, losses and optimisers, and with the host's reads that they have. They are not
those projects' code: CORL's needs packages that no longer install, and OfflineRL-Kit's a clone of its repository.
"""

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algos.data import Dataset
from algos.replay import Batch

HOPPER, CHEETAH = (11, 3), (17, 6)  # sizes of observations and actions


def random_data(sizes: tuple[int, int], count: int = 100_000) -> Dataset:
    """Random transitions of these sizes."""
    rng = np.random.default_rng(0)
    obs, next_obs = rng.standard_normal((2, count, sizes[0]), np.float32)
    action = rng.uniform(-1, 1, (count, sizes[1])).astype(np.float32)
    return Dataset.of(obs, action, rng.standard_normal(count), next_obs, np.zeros(count))


class PlainEnsemble:
    """Seven networks of one run in separate parameters [7, in, out], trained on batches that come from the host."""

    def __init__(self, data: Dataset):
        obs, action, reward, next_obs, _ = (x[0].numpy() for x in data.gather(torch.arange(len(data))[None]))
        self.inputs = np.concatenate([obs, action], 1)
        self.targets = np.concatenate([next_obs - obs, reward[:, None]], 1)
        self.inputs = (self.inputs - self.inputs.mean(0)) / self.inputs.std(0)
        sizes = [self.inputs.shape[1], 200, 200, 200, 200, 2 * self.targets.shape[1]]
        self.weights = [
            nn.Parameter(torch.randn(7, i, o) / (2 * i**0.5)) for i, o in zip(sizes, sizes[1:], strict=False)
        ]
        self.biases = [nn.Parameter(torch.zeros(7, 1, o)) for o in sizes[1:]]
        self.high = nn.Parameter(torch.full((self.targets.shape[1],), 0.5))
        self.low = nn.Parameter(torch.full((self.targets.shape[1],), -10.0))
        self.adam = torch.optim.Adam([*self.weights, *self.biases, self.high, self.low], lr=1e-3)
        self.rows = np.random.default_rng(0).integers(len(self.inputs), size=(7, len(self.inputs)))

    def learn(self, batches: int, size: int = 256) -> None:
        """Steps on the first batches of an epoch."""
        inputs, targets = self.inputs[self.rows[:, : batches * size]], self.targets[self.rows[:, : batches * size]]
        for number in range(batches):
            part = slice(number * size, (number + 1) * size)
            x, target = torch.as_tensor(inputs[:, part]), torch.as_tensor(targets[:, part])
            for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                x = torch.einsum("bij,bjk->bik", x, weight) + bias
                x = x * torch.sigmoid(x) if layer < 4 else x
            mean, log_var = x.chunk(2, -1)
            log_var = self.high - nn.functional.softplus(self.high - log_var)
            log_var = self.low + nn.functional.softplus(log_var - self.low)
            loss = ((mean - target).pow(2) * torch.exp(-log_var)).mean((1, 2)).sum() + log_var.mean((1, 2)).sum()
            for weight, decay in zip(self.weights, (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4), strict=True):
                loss = loss + decay * 0.5 * (weight**2).sum()
            loss = loss + 0.01 * self.high.sum() - 0.01 * self.low.sum()
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
            loss.item()


class PlainEDAC:
    """Ten critics and an actor of one run, with a double backward for the diversity of gradients."""

    def __init__(self, sizes: tuple[int, int], critics: int = 10, eta: float = 1.0):
        (obs_size, act_size), self.count, self.eta = sizes, critics, eta
        self.actor = nn.Sequential(
            nn.Linear(obs_size, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
            nn.Linear(256, 2 * act_size),
        )  # fmt: skip
        widths = [obs_size + act_size, 256, 256, 256, 1]
        pairs = list(zip(widths, widths[1:], strict=False))
        self.critic = [nn.Parameter(torch.randn(critics, i, o) / i**0.5) for i, o in pairs]
        self.critic += [nn.Parameter(torch.zeros(critics, 1, o)) for _, o in pairs]
        self.target = [p.detach().clone() for p in self.critic]
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.adams = [torch.optim.Adam(p, lr=3e-4) for p in ([self.log_alpha], self.actor.parameters(), self.critic)]

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, torch.exp(torch.clip(log_std, -5, 2)))
        raw = normal.rsample()
        action = torch.tanh(raw)
        return action, normal.log_prob(raw).sum(-1) - torch.log(1 - action.pow(2) + 1e-6).sum(-1)

    def values(self, parameters: list[Any], obs: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([obs, action], -1)
        x = x.unsqueeze(0).repeat_interleave(self.count, 0) if x.dim() == 2 else x
        for layer in range(4):
            x = x @ parameters[layer] + parameters[4 + layer]
            x = torch.relu(x) if layer < 3 else x
        return x.squeeze(-1)

    def descend(self, adam: torch.optim.Adam, loss: Tensor) -> None:
        adam.zero_grad()
        loss.backward()
        adam.step()

    def update(self, batch: Batch) -> None:
        obs, action, reward, next_obs, ended = batch
        with torch.no_grad():
            _, log_prob = self.sample(obs)
        self.descend(self.adams[0], (-self.log_alpha * (log_prob - action.shape[-1])).mean())
        alpha = self.log_alpha.exp().detach()
        new_action, log_prob = self.sample(obs)
        values = self.values(self.critic, obs, new_action)
        actor_loss = (alpha * log_prob - values.min(0).values).mean()
        self.descend(self.adams[1], actor_loss)
        with torch.no_grad():
            next_action, next_log_prob = self.sample(next_obs)
            soft = self.values(self.target, next_obs, next_action).min(0).values - alpha * next_log_prob
            target = (reward + 0.99 * (1 - ended) * soft).unsqueeze(0)
        loss = (self.values(self.critic, obs, action) - target).pow(2).mean(1).sum()
        copies = action.unsqueeze(0).repeat_interleave(self.count, 0).requires_grad_(True)
        many = obs.unsqueeze(0).repeat_interleave(self.count, 0)
        (gradient,) = torch.autograd.grad(self.values(self.critic, many, copies).sum(), copies, create_graph=True)
        unit = (gradient / (gradient.norm(p=2, dim=2).unsqueeze(-1) + 1e-10)).transpose(0, 1)
        products = (1 - torch.eye(self.count)) * (unit @ unit.permute(0, 2, 1))
        loss = loss + self.eta * products.sum((1, 2)).mean() / (self.count - 1)
        self.descend(self.adams[2], loss)
        with torch.no_grad():
            for ours, theirs in zip(self.target, self.critic, strict=True):
                ours.copy_(0.995 * ours + 0.005 * theirs)
        for number in (loss, actor_loss, values.std(0).mean(), log_prob.mean()):
            number.item()


def rate(what: str, steps: int, warm_up: int = 20) -> float:
    """Steps per second of `ensemble` or `edac`, on batches of 256."""
    if what == "ensemble":
        ensemble = PlainEnsemble(random_data(HOPPER))
        ensemble.learn(warm_up)
        started = time.perf_counter()
        ensemble.learn(min(steps, 390))  # an epoch
        return min(steps, 390) / (time.perf_counter() - started)
    data, edac, started = random_data(CHEETAH), PlainEDAC(CHEETAH), 0.0
    for step in range(warm_up + steps):
        if step == warm_up:
            started = time.perf_counter()
        edac.update(Batch(*(x[0] for x in data.gather(torch.randint(len(data), (1, 256))))))
    return steps / (time.perf_counter() - started)
