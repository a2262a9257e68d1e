"""Ensembles of probabilistic networks that learn the dynamics of a dataset: [R, E, ...], trained together.

A member predicts the change of the observation and the reward, each as a Gaussian: Chua et al. (arXiv 1805.12114), in
the forms that MBPO's successors in offline RL have. Their official codes differ in details, so there are two forms:

| | ravl (anyasims/edge-of-reach) | offlinerl_kit (yihaosun1124/OfflineRL-Kit) |
|---|---|---|
| inputs | statistics of all next observations and actions, clipped to ±10 | statistics of the training rows |
| initial weights | normal, cut at two standard deviations | normal |
| holdout | 20% of the data | 20% of the data, at most 1,000 transitions |
| bootstrap | drawn once; members exchange theirs at every epoch | drawn once; each member keeps its own |
| stop | at a plateau from epoch 351 on; at the first plateau before, the rate falls to 0.3 of itself | at a plateau |

A plateau is five epochs in which no member's holdout error fell by more than 1%. Each run stops by itself, and stands
still while others go on. After an epoch, a member's weights are kept if its holdout error is lower by more than 1% than
that of the weights kept before; so in the end its error may be about 1% above the least of all epochs. Then the members
are in the order of the errors of their kept weights, so that the first ones are the elites.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor, nn

from algos.agent import Agent
from algos.agent_file import contents
from algos.data.record import Dataset, slices
from algos.errors import UserError
from algos.nn import MLP, TruncatedNormal
from algos.optim import Adam
from algos.per_run import PerRun, per_run
from algos.random import generators

FormName = Literal["ravl", "offlinerl_kit"]
DECAYS = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5)  # each hidden layer has its own; further ones have the last
OUT_DECAY = 1e-4
BOUND_WEIGHT = 0.01  # it weighs the loss that pulls the bounds of log-variances together
IMPROVEMENT = 0.01  # relative
PATIENCE = 5  # epochs
WIDTHS = (0.674490, 1.644854)  # the central 50 and 90% of a normal distribution end at so many standard deviations
LATER_RATE = 0.3  # factor of the learning rate after ravl's first plateau


class Form(NamedTuple):
    """How an ensemble is trained, where the official codes differ; see the table above."""

    holdout: float  # most transitions of the holdout
    clip: float  # greatest magnitude of a normalised input
    cut: float | None  # greatest magnitude of an initial weight; None: two standard deviations
    own_statistics: bool  # whether the inputs' statistics are those of a run's training rows
    exchange: bool  # whether members exchange their bootstraps, and see the rows in the same order
    first_stop: int  # the first epoch at which a run may stop


FORMS: dict[str, Form] = {
    "ravl": Form(math.inf, 10.0, None, False, True, 351),
    "offlinerl_kit": Form(1_000, math.inf, 2.0, True, False, 1),
}


@dataclass(kw_only=True)
class Settings:
    """Settings of an ensemble besides the sizes of observations and actions."""

    form: FormName = "offlinerl_kit"
    members: int = 7
    elites: int = 5
    hidden: tuple[int, ...] = (200, 200, 200, 200)
    lr: float = 1e-3
    batch_size: int = 256


def soft_clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """x bent smoothly below `high`, and then above `low`."""
    x = high - F.softplus(high - x)
    return low + F.softplus(x - low)


class Ensemble(nn.Module):
    """E networks of each of R runs: obs [R, B, O] or [R, E, B, O], action -> mean, log_var, each [R, E, B, O + 1].

    The outputs are the change of the observation, and the reward. The bounds of the log-variances are learned, and
    shared by the members of a run.
    """

    mean: Tensor  # [R, 1, 1, O + A] of the inputs
    std: Tensor

    def __init__(self, runs: int, obs_size: int, act_size: int, settings: Settings, members: int | None = None):
        super().__init__()
        form, inputs, outputs = FORMS[settings.form], obs_size + act_size, obs_size + 1
        self.runs, self.obs_size, self.settings, self.clip = runs, obs_size, settings, form.clip
        linear = partial(TruncatedNormal, cut=form.cut)
        self.net = MLP((runs, members or settings.members), inputs, settings.hidden, 2 * outputs, F.silu, linear=linear)
        self.max_log_var = nn.Parameter(torch.full((runs, 1, 1, outputs), 0.5))
        self.min_log_var = nn.Parameter(torch.full((runs, 1, 1, outputs), -10.0))
        self.register_buffer("mean", torch.zeros(runs, 1, 1, inputs))
        self.register_buffer("std", torch.ones(runs, 1, 1, inputs))

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([obs, action], -1)
        x = (x if x.dim() == 4 else x[:, None]) - self.mean
        x = (x / self.std).clamp(-self.clip, self.clip)
        mean, log_var = self.net(x).chunk(2, -1)
        return mean, soft_clamp(log_var, self.min_log_var, self.max_log_var)

    def selected(self, runs: Tensor, members: int) -> "Ensemble":
        """The ensembles with the numbers `runs` [K], and of these the first members."""
        chosen = Ensemble(len(runs), self.obs_size, self.mean.shape[-1] - self.obs_size, self.settings, members)
        chosen = chosen.to(self.mean.device).requires_grad_(False)
        chosen.load_state_dict({
            name: tensor[runs][:, :members] if name.startswith("net.") else tensor[runs]
            for name, tensor in self.state_dict().items()
        })  # fmt: skip
        return chosen

    @property
    def layers(self) -> list[Any]:
        """The linear layers, from the first to the last."""
        return [*(block[0] for block in self.net.hidden), self.net.out]  # type: ignore[index]

    def decay(self) -> Tensor:
        """Half the sum of squares of the weights, each layer's with its factor: [R]."""
        hidden = [*DECAYS, *[DECAYS[-1]] * len(self.layers)][: len(self.layers) - 1]
        squares = [layer.weight.square().sum((1, 2, 3)) for layer in self.layers]
        return sum(0.5 * factor * square for factor, square in zip([*hidden, OUT_DECAY], squares, strict=True))


def likelihood_loss(mean: Tensor, log_var: Tensor, target: Tensor) -> Tensor:
    """Mean of log_var + (target - mean)^2 exp(-log_var) over rows and outputs, which are the last two axes."""
    return (log_var + (target - mean).square() * (-log_var).exp()).mean((-2, -1))


def targets(obs: Tensor, reward: Tensor, next_obs: Tensor) -> Tensor:
    """The targets of an ensemble: [..., O + 1]."""
    return torch.cat([next_obs - obs, reward[..., None]], -1)


def output_names(obs_size: int) -> list[str]:
    """The names of what `targets` gives, in tables."""
    return [*(f"obs {i}" for i in range(obs_size)), "reward"]


def learnable(data: Dataset) -> Tensor:
    """The numbers of the transitions from which dynamics are learned.

    Terminal ones whose next observations are not true do not count: a model would learn false jumps.
    """
    numbers = torch.arange(len(data))
    return numbers if data.true_ends else numbers[(data.terminated[data.index] == 0).cpu()]


class Training(Agent):
    """Ensembles of R runs that learn from one dataset on their device, each with a holdout and bootstraps of its own.

    `epoch_rows` gives the batches of an epoch, `update` makes a step on one of them, and `end_epoch` validates.
    """

    error: Tensor  # [R, E] mean squared error on the holdout after the last epoch
    best_error: Tensor  # [R, E] that of the weights kept so far
    stale: Tensor  # [R] epochs since a member improved, or since the rate fell
    stopped: Tensor  # [R]
    slowed: Tensor  # [R] whether the rate has fallen
    rate: Tensor  # [R]

    def __init__(self, args: Settings, data: Dataset, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, data.task, seeds, device)
        self.data, self.form = data, FORMS[args.form]
        size = (data.obs_size, data.act_size)
        self.ensemble = self.initialise("dynamics", Ensemble(self.runs, *size, args))
        self.best = Ensemble(self.runs, *size, args).to(device).requires_grad_(False)
        for name, value in {
            "error": torch.zeros(self.runs, args.members),
            "best_error": torch.full((self.runs, args.members), math.inf),
            "stale": torch.zeros(self.runs, dtype=torch.int64),
            "stopped": torch.zeros(self.runs, dtype=torch.bool),
            "slowed": torch.zeros(self.runs, dtype=torch.bool),
            "rate": torch.full((self.runs,), args.lr, dtype=torch.float64),
        }.items():
            self.register_buffer(name, value.to(device))
        self.adam = Adam(self.ensemble.parameters(), lr=PerRun(self.rate, device))
        self._split()
        self._fit_inputs()
        self.best.load_state_dict(self.ensemble.state_dict())

    def _split(self) -> None:
        """Draws the holdout [R, H] and the bootstraps [R, E, T], which are numbers of transitions."""
        usable = learnable(self.data)
        count = len(usable)
        held = int(min(0.2 * count, self.form.holdout))
        if not held:
            raise UserError(
                f"--dataset {self.data.name} has {count} transitions to learn from, and an ensemble needs at least 5"
            )
        order = torch.stack([usable[torch.randperm(count, generator=g)] for g in generators(self.seeds, "holdout")])
        self.holdout, train = order[:, :held].to(self.device), order[:, held:]
        shape = (self.args.members, count - held)
        rows = [torch.randint(shape[1], shape, generator=g) for g in generators(self.seeds, "bootstrap")]
        chosen = [part[picked].to(torch.int32) for part, picked in zip(train, rows, strict=True)]
        self.bootstraps, self.train_rows = torch.stack(chosen).to(self.device), train.to(self.device, torch.int32)

    def _fit_inputs(self) -> None:
        """Sets the means and standard deviations by which inputs are normalised."""
        shape, own = (self.runs, self.ensemble.mean.shape[-1]), self.form.own_statistics
        first, counted = torch.zeros(2, *shape, dtype=torch.float64, device=self.device)
        if not own:  # its code counts the first observation too
            first[:, : self.data.obs_size] = self.data.obs[self.data.index[0]].double()
            counted[:, : self.data.obs_size] = 1
        total, count = first.clone(), counted.clone()
        for x in self._inputs():
            total += x.sum(1)
            count += x.shape[1]
        mean = total / count
        squares = counted * (first - mean).square()
        for x in self._inputs():
            squares += (x - mean[:, None]).square().sum(1)
        std = (squares / count).sqrt()
        std = torch.where(std < 1e-12, 1.0, std) if own else std.clamp(min=1e-6)
        self.ensemble.mean.copy_(mean[:, None, None])
        self.ensemble.std.copy_(std[:, None, None])

    def _inputs(self) -> Iterator[Tensor]:
        """Yields the inputs whose statistics count, some rows at a time: [R or 1, n, O + A]."""
        data = self.data
        if self.form.own_statistics:
            for part in slices(self.train_rows.shape[1]):
                batch = data.gather(self.train_rows[:, part].long())
                yield torch.cat([batch.obs, batch.action], -1).double()
            return
        for part in slices(len(data)):
            rows = data.index[part]
            yield torch.cat([data.obs[rows + 1], data.action[rows]], -1)[None].double()

    # -- learning -----------------------------------------------------------------------------------------------------

    @property
    def batches(self) -> int:
        """The number of batches in an epoch; the last one may be smaller than the others."""
        return math.ceil(self.bootstraps.shape[-1] / self.args.batch_size)

    def epoch_rows(self, epoch: int) -> Tensor:
        """The transitions [R, E, T] of an epoch, as members see them in turn; they depend on the seed alone."""
        orders = []
        for bootstrap, generator in zip(self.bootstraps, generators(self.seeds, f"epoch {epoch}"), strict=True):
            members, count = bootstrap.shape
            if self.form.exchange:
                who, when = torch.randperm(members, generator=generator), torch.randperm(count, generator=generator)
                orders.append(bootstrap[who.to(self.device)][:, when.to(self.device)])
            else:
                when = torch.stack([torch.randperm(count, generator=generator) for _ in range(members)])
                orders.append(bootstrap.gather(1, when.to(self.device)))
        return torch.stack(orders)

    def loss(self, obs: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """The loss of each run [R]: a sum over members, which learn from rows [R, E, B, ...] of their own."""
        mean, log_var = self.ensemble(obs, action)
        bounds = (self.ensemble.max_log_var - self.ensemble.min_log_var).sum((1, 2, 3))
        return likelihood_loss(mean, log_var, target).sum(1) + self.ensemble.decay() + BOUND_WEIGHT * bounds

    def update(self, rows: Tensor, active: Tensor | None = None) -> dict[str, Tensor]:
        """One step on the transitions `rows` [R, E, B]; runs where `active` [R] is False stand still."""
        batch = self.data.gather(rows.flatten(1).long())
        obs, action, reward, next_obs = (x.unflatten(1, rows.shape[1:]) for x in batch[:4])
        loss = self.loss(obs, action, targets(obs, reward, next_obs))
        self.adam.minimise(loss, active)
        return {"loss": loss.detach()}

    @torch.no_grad()
    def errors(self, ensemble: Ensemble) -> Tensor:
        """Mean squared errors on the holdout, for each member and output: [R, E, O + 1]."""
        total = torch.zeros(self.runs, self.args.members, self.data.obs_size + 1, device=self.device)
        for part in slices(self.holdout.shape[1]):
            batch = self.data.gather(self.holdout[:, part])
            mean, _ = ensemble(batch.obs, batch.action)
            total += (mean - targets(batch.obs, batch.reward, batch.next_obs)[:, None]).square().sum(2)
        return total / self.holdout.shape[1]

    @torch.no_grad()
    def end_epoch(self, epoch: int) -> dict[str, Tensor]:
        """Validates after an epoch, counted from 1: keeps the best weights, and lets runs at a plateau stop or slow."""
        self.error.copy_(error := self.errors(self.ensemble).mean(-1))
        going = ~self.stopped
        # not finite errors never improve; the first finite one always does
        better = (error < (1 - IMPROVEMENT) * self.best_error) & going[:, None]
        self.best_error.copy_(torch.where(better, error, self.best_error))
        for best, now in zip(self.best.net.parameters(), self.ensemble.net.parameters(), strict=True):
            mask = better.view(*better.shape, *[1] * (now.dim() - 2))
            best.copy_(torch.where(mask, now, best))
        for name in ("max_log_var", "min_log_var"):  # shared by members: they keep their last values
            best, now = getattr(self.best, name), getattr(self.ensemble, name)
            best.copy_(torch.where(per_run(going, now), now, best))
        self.stale.copy_(torch.where(better.any(1), 0, self.stale + 1))
        plateau = (self.stale >= PATIENCE) & going
        stops = plateau & (epoch >= self.form.first_stop)
        slows = plateau & ~stops & ~self.slowed
        self.stopped |= stops
        self.slowed |= slows
        self.rate.mul_(torch.where(slows, LATER_RATE, 1.0))
        self.stale.masked_fill_(slows, 0)
        return {
            "holdout_error": error.mean(1),
            "elite_error": self.best_error.sort(1)[0][:, : self.args.elites].mean(1),
        }

    @torch.no_grad()
    def trained(self) -> Ensemble:
        """The ensemble with each member's best weights, the members in the order of their errors."""
        order = self.best_error.argsort(dim=1, stable=True)  # [R, E]
        ensemble = Ensemble(self.runs, self.data.obs_size, self.data.act_size, self.args).to(self.device)
        ensemble.load_state_dict(self.best.state_dict())
        for parameter in ensemble.net.parameters():
            index = order.view(*order.shape, *[1] * (parameter.dim() - 2)).expand_as(parameter)
            parameter.copy_(parameter.gather(1, index))
        return ensemble.requires_grad_(False)

    @torch.no_grad()
    def summary(self, ensemble: Ensemble) -> list[dict[str, Any]]:
        """One row for each seed, member and output of a trained ensemble, on the holdout.

        They hold the mean squared error, and the shares of targets inside the member's 50 and 90% intervals, which are
        NaN where the error is.
        """
        shares = torch.zeros(2, self.runs, self.args.members, self.data.obs_size + 1, device=self.device)
        for part in slices(self.holdout.shape[1]):
            batch = self.data.gather(self.holdout[:, part])
            mean, log_var = ensemble(batch.obs, batch.action)
            distance = (mean - targets(batch.obs, batch.reward, batch.next_obs)[:, None]).abs() / (0.5 * log_var).exp()
            shares += torch.stack([(distance <= width).sum(2) for width in WIDTHS])
        found = self.errors(ensemble)
        errors, inside = found.tolist(), torch.where(found.isnan(), found, shares / self.holdout.shape[1]).tolist()
        return [
            {
                "seed": seed, "member": member, "elite": member < self.args.elites, "output": output,
                "error": errors[run][member][i], "inside_50": inside[0][run][member][i],
                "inside_90": inside[1][run][member][i],
            }
            for run, seed in enumerate(self.seeds)
            for member in range(self.args.members)
            for i, output in enumerate(output_names(self.data.obs_size))
        ]  # fmt: skip


# -- files -------------------------------------------------------------------------------------------------------------


def ensemble_file(ensemble: Ensemble, seeds: Sequence[int], data: Dataset) -> bytes:
    """The bytes of a file with the trained ensembles of these seeds, from which `load_ensemble` takes them."""
    facts = {
        "seeds": list(seeds), "settings": asdict(ensemble.settings), "obs_size": data.obs_size,
        "act_size": data.act_size, "dataset": data.name, "digest": digest_of_data(data),
    }  # fmt: skip
    tensors = {name: tensor.contiguous() for name, tensor in ensemble.state_dict().items()}
    return save(tensors, {"dynamics": json.dumps(facts)})


def digest_of_data(data: Dataset) -> str:
    """A digest of a dataset as it was prepared: its rows, and how observations and actions were scaled."""
    digest = hashlib.sha256((data.digest or str(data.rows.double().sum().item())).encode())
    for pair in (data.obs_scaling, data.action_scaling):
        digest.update(repr([tensor.double().cpu().tolist() for tensor in pair or ()]).encode())
    return digest.hexdigest()


def load_ensemble(path: Path, seeds: Sequence[int], data: Dataset, members: int = 1) -> Ensemble:
    """The ensembles of these seeds in a file that a run wrote.

    Raises UserError if the file is damaged or something else, if it learned from other data, if it lacks a seed, if an
    ensemble has fewer members than this, or if it diverged.
    """
    try:
        state, said = contents(path)
        facts = said["dynamics"]
        held, settings = facts["seeds"], Settings(**facts["settings"] | {"hidden": tuple(facts["settings"]["hidden"])})
        if facts["digest"] != digest_of_data(data):
            raise UserError(
                f"--dynamics {path} learned from {facts['dataset']}, which is another one than --dataset {data.name} "
                "here, or was prepared in another way (--standardise, --env-id, --exact-d4rl)"
            )
        if missing := [seed for seed in dict.fromkeys(seeds) if seed not in held]:
            raise UserError(f"--dynamics {path} has no ensemble for seed {missing[0]}; it has seeds {held}")
        if settings.members < members:
            raise UserError(f"--dynamics {path} has ensembles of {settings.members} members, and {members} are needed")
        ensemble = Ensemble(len(held), facts["obs_size"], facts["act_size"], settings)
        ensemble.load_state_dict(state)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise UserError(f"--dynamics {path} is no file of an ensemble ({error})") from None
    chosen = ensemble.selected(torch.tensor([held.index(seed) for seed in seeds]), settings.members)
    for run, seed in enumerate(seeds):
        if not all(tensor[run].isfinite().all() for tensor in chosen.state_dict().values()):
            raise UserError(f"--dynamics {path}: the ensemble of seed {seed} diverged")
    return chosen
