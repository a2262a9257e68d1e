"""The part of offline model-based scripts around their algorithm: a model of the data's dynamics, and its rollouts."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pandas as pd
import torch
from torch import Tensor

from algos.arguments import Count, Fraction, Positive, Several, Size, Widths
from algos.checkpoint import digest_of, write_atomically
from algos.data import Dataset
from algos.dynamics import Ensemble, FormName, Settings, Training, ensemble_file, load_ensemble
from algos.errors import UserError, warn
from algos.model_buffer import ModelBuffer
from algos.model_watch import WATCHED, Comparison, RolloutAgent, Watch, sum_of, truth_of
from algos.models import Learned, Mixed, Model, Prediction, Simulated, StepDraws, simulator_for
from algos.nn import initialise, use_bf16
from algos.offline import OfflineArgs, offline_run
from algos.random import generators
from algos.replay import Batch
from algos.run import Run
from algos.terminations import Termination, never, own_termination, termination, tried

PHASE = "dynamics"
TRUE = "true"
PIECE = 5_000  # most rollouts of a run that are made at once
SAID = 10  # epochs of the ensemble between lines on the terminal
Args = TypeVar("Args", bound="ModelBasedArgs")
# arguments that count only where an ensemble is trained, where there is one, and where there is a model at all
OF_TRAINING = ("dynamics_hidden", "dynamics_lr", "dynamics_batch_size", "dynamics_epochs")
OF_ENSEMBLES = (*OF_TRAINING, "form", "members", "elites", "guesses")
OF_ROLLOUTS = ("rollouts", "rollout_length", "retain_epochs", "never_terminates", "terminates")


@dataclass(kw_only=True)
class ModelBasedArgs(OfflineArgs):
    """Arguments of the scripts that learn from a dataset and from rollouts of a model of it."""

    total_steps: Count = 3_000_000
    """gradient updates of each run"""
    eval_every: Count = 1_000
    """updates between evaluations, which also take place before the first and after the last"""
    batch_size: Size = 256
    """transitions per update and run, of the dataset and of the model together"""
    real_ratio: Fraction = 0.05
    """share of a batch that comes from the dataset, rounded down to whole transitions; 1: there is no model,
    and what is said below about one does not count"""
    rollouts: Count = 50_000
    """rollouts of the model in an epoch, for each run; they begin in states of the dataset"""
    rollout_length: Several = 5
    """steps of a rollout, unless the task ends it earlier"""
    updates_per_epoch: Count = 1_000
    """updates between rollouts; where the actor's learning rate falls, it does so at this rhythm"""
    retain_epochs: Count = 5
    """epochs whose rollouts are kept, if none ends early"""
    dynamics: str = ""
    """the model. true: MuJoCo itself; FILE: the ensemble that an earlier run left there (dynamics.safetensors); by
    default an ensemble is trained first"""
    model_mix: Fraction = 0.0
    """w: a prediction is (1 - w) times that of the ensemble plus w times that of another model"""
    mix_with: Literal["true", "random"] = "true"
    """the other model of --model-mix. true: MuJoCo itself; random: an ensemble with random weights"""
    form: FormName = "offlinerl_kit"
    """official code that decides how the ensemble is trained and when a predicted state ends an episode; with
    --dynamics FILE it decides only when episodes end, and with --dynamics true nothing"""
    members: Count = 7
    """networks of the ensemble; with --dynamics FILE, MOPO's penalty is over so many of its best networks, and other
    methods ask the elites alone"""
    elites: Count = 5
    """networks whose predictions are used: those with the least error on the holdout"""
    dynamics_hidden: Widths = (200, 200, 200, 200)
    """widths of the ensemble's hidden layers; only where an ensemble is trained"""
    dynamics_lr: Positive = 1e-3
    """learning rate of the ensemble; only where an ensemble is trained"""
    dynamics_batch_size: Size = 256
    """transitions per update and member of the ensemble; only where an ensemble is trained"""
    dynamics_epochs: Count = 2_000
    """most epochs of the ensemble, which stops earlier when its holdout error falls no more; RAVL's code has this bound
    too, OfflineRL-Kit's has none; only where an ensemble is trained"""
    never_terminates: bool = False
    """no predicted state ends an episode"""
    terminates: str = ""
    """module:function that tells which predicted observations [..., O] end an episode, for other environments; the
    module may lie in the working directory"""

    @property
    def real(self) -> int:
        """The number of transitions of a batch that come from the dataset."""
        return int(self.batch_size * self.real_ratio)

    def check_task(self) -> None:
        super().check_task()
        if self.elites > self.members:
            raise UserError(f"--elites must be at most --members, {self.members}, got {self.elites}")
        if self.never_terminates and self.terminates:
            raise UserError("--never-terminates and --terminates contradict each other: give one of them")
        if self.terminates:
            own_termination(self.terminates)
        if self.dynamics == TRUE and (self.never_terminates or self.terminates):
            raise UserError(
                "--dynamics true ends episodes as the task does: leave out --never-terminates and --terminates"
            )
        mixes = bool(self.model_mix) or self.mix_with == "random"
        if self.real == self.batch_size and (self.dynamics or mixes):
            raise UserError(
                "--real-ratio 1 takes nothing from a model: leave out --dynamics, --model-mix and --mix-with"
            )
        if self.dynamics == TRUE and mixes:
            raise UserError("--model-mix is the share of another model beside an ensemble, which --dynamics true lacks")
        if self.mix_with == "random" and not self.model_mix:
            raise UserError("--mix-with random needs the share of the random model: give --model-mix")

    def check_ready(self) -> None:
        super().check_ready()
        if self.dynamics not in ("", TRUE) and not Path(self.dynamics).is_file():
            raise UserError(f"--dynamics takes true or the file of an ensemble, and there is no file {self.dynamics}")

    def without_effect(self) -> dict[str, str]:
        known = self.dynamics == TRUE or (self.model_mix == 1 and self.mix_with == TRUE)
        certain = self.real == self.batch_size or known
        idle = {"penalty_weight": "without a share of an ensemble, which alone is uncertain"} if certain else {}
        if self.real == self.batch_size:
            idle |= dict.fromkeys((*OF_ENSEMBLES, *OF_ROLLOUTS), "without a model")
        elif self.dynamics == TRUE:
            idle |= dict.fromkeys(OF_ENSEMBLES, "without an ensemble")
        elif self.dynamics:
            idle |= dict.fromkeys(OF_TRAINING, "where the ensemble is trained already")
        return {name: when for name, when in idle.items() if hasattr(self, name)}

    @property
    def ensemble(self) -> Settings:
        """How the ensemble is made and trained."""
        return Settings(
            form=self.form, members=self.members, elites=self.elites, hidden=self.dynamics_hidden, lr=self.dynamics_lr,
            batch_size=self.dynamics_batch_size,
        )  # fmt: skip

    def termination(self, data: Dataset) -> Termination:
        """The rule by which predicted states of the prepared data end episodes."""
        if self.never_terminates:
            return never
        if self.terminates:
            rule = tried(own_termination(self.terminates), data.raw_obs(data.obs[data.index[:1]]))
        else:
            changed = [name for name in data.env_options if "healthy" in name and name != "healthy_reward"]
            if changed:
                raise UserError(
                    f"--dataset {data.name} was recorded with {changed[0]}, which the rule of {data.env_id} does not "
                    "know: give --never-terminates, or a function of your own with --terminates module:function"
                )
            rule = termination(data.env_id, data.obs_size, self.form)
        return lambda obs: rule(data.raw_obs(obs))


def model_based_run(args: Args, algorithm: str) -> tuple[Run[Args], Dataset]:
    """A run on the dataset that the arguments name; see `offline_run`."""
    args.check_ready()
    facts: dict[str, Any] = {}
    if args.dynamics not in ("", TRUE):
        facts["dynamics_digest"] = digest_of(Path(args.dynamics))
    return offline_run(args, algorithm, "none", states=args.real < args.batch_size, **facts)


class ModelData:
    """The batches of a model-based agent: a part from the dataset, the rest from a ring buffer with the model's steps.

    `fit` trains the ensemble, `generate` makes the rollouts of an epoch, and `choose` and `gather` give batches. The
    rows of a rollout that has ended are computed, but not stored. `memory` is the part that checkpoints must hold.
    `penalty` gives what is subtracted from predicted rewards before they are stored [R, B]; with None, they are
    stored as they are. `soft` says that the agent's values count entropy.
    """

    def __init__(
        self,
        run: Run[Any],
        data: Dataset,
        agent: RolloutAgent,
        penalty: Callable[[Prediction], Tensor] | None,
        soft: bool = True,
    ):
        self.run, self.data, self.agent, self.penalty, self.args = run, data, agent, penalty, run.given
        args, random = self.args, run.random
        self.real, self.modelled = args.real, args.batch_size - args.real
        self.memory: dict[str, Any] = {}
        self.choose_real = random.integers("minibatch", max(self.real, 1))
        self.training: Training | None = None
        self.watch = Watch(run, data, agent, soft)
        if not self.modelled:
            return
        if args.dynamics != TRUE:
            self.terminated = args.termination(data)
        capacity = args.rollouts * args.rollout_length * args.retain_epochs
        try:
            self.buffer = ModelBuffer(run.runs, capacity, data.task, run.device)
        except UserError as error:
            raise UserError(f"--rollouts times --rollout-length times --retain-epochs: {error}") from None
        self.memory["buffer"] = self.buffer
        self.choose_model = random.integers("model minibatch", self.modelled)
        piece = min(PIECE, args.rollouts)
        self.begin = random.integers("rollout start", piece)
        self.normal = random.normal("rollout action", piece, data.act_size)
        self.outcome = random.normal("rollout outcome", piece, data.obs_size + 1)
        self.member = random.uniform("rollout member", piece)
        self.seeds = list(dict.fromkeys(run.seeds))
        self.of_run = torch.tensor([self.seeds.index(seed) for seed in run.seeds], device=run.device)
        self.simulated: Simulated | None = None
        if args.dynamics == TRUE or (args.model_mix and args.mix_with == TRUE):
            self.simulated = Simulated(simulator_for(data, args.threads), data)
        if not args.dynamics:
            self.training = Training(args.ensemble, data, self.seeds, run.device)
            self._round(self.training.ensemble)
            self.memory["dynamics"] = self.training
        self.comparison = Comparison(run, data, agent)
        self.truth: Simulated | None = None

    # -- the ensemble -------------------------------------------------------------------------------------------------

    def fit(self, members: int) -> None:
        """Trains the ensembles, or loads them, and keeps the first `members` networks of each, the elites first."""
        args, run = self.args, self.run
        if not self.modelled:
            return
        if args.dynamics == TRUE:
            assert self.simulated
            self.use(self.simulated)
            return
        if self.training:
            self._train(self.training)
            trained, of_run = self.training.trained(), self.of_run
            if PHASE in run.over and self.training.best_error.isfinite().any():  # not in a final checkpoint
                self._keep(self.training, trained)
        else:
            trained = load_ensemble(Path(args.dynamics), run.seeds, self.data, members).to(run.device)
            of_run = torch.arange(run.runs, device=run.device)
        chosen = self._round(trained.selected(of_run, members))
        self.learned = learned = Learned(chosen, args.elites, self.terminated)
        if not args.model_mix:
            self.truth = truth_of(run, self.data)
            self.use(learned)
            return
        other = self.simulated or Learned(self._random(learned.ensemble), args.elites, self.terminated)
        self.use(Mixed(learned, other, args.model_mix))

    def use(self, model: Model) -> None:
        """Takes a model for the rollouts."""
        self.model = model
        self.step = self._step if model.on_host else self.run.compiled(self._step)

    def _train(self, training: Training) -> None:
        """The phase in which the ensembles learn: one step on a batch an iteration, validation after each epoch."""
        args, run = self.args, self.run
        update, count = run.compiled(training.update), training.batches
        # one smaller batch an epoch is not worth another half a minute of compiling
        update_smaller = training.update if run.device.type == "cpu" else update
        rows: Any = ()
        broken: set[tuple[int, int]] = set()
        for step in run.phase(PHASE, args.dynamics_epochs * count, count, min(10 * count, args.checkpoint_every)):
            epoch, number = divmod(step - 1, count)
            if not number or not rows:
                rows = training.epoch_rows(epoch + 1).split(args.dynamics_batch_size, -1)
                active = ~training.stopped if training.stopped.any() else None
            whole = rows[number].shape[-1] == args.dynamics_batch_size
            run.log(self._by_run((update if whole else update_smaller)(rows[number], active)))
            if number == count - 1:
                run.log(self._by_run(found := training.end_epoch(epoch + 1)))
                if not (epoch + 1) % SAID or training.stopped.all():
                    errors = found["holdout_error"].tolist()
                    going = f"{int((~training.stopped).sum())} of {len(errors)} go on"
                    run.say(
                        f"ensemble epoch {epoch + 1:>6,}  holdout error {min(errors):.4f} to {max(errors):.4f}, {going}"
                    )
                for seed, member in (~training.error.isfinite()).nonzero().tolist():
                    if (seed, member) not in broken:
                        broken.add((seed, member))
                        named = f"member {member} of the ensemble of seed {self.seeds[seed]}"
                        warn(f"{named} diverged in epoch {epoch + 1}")
                if training.stopped.all():
                    run.end_phase(PHASE)

    def _by_run(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        """Metrics of the seeds [S] as metrics of the runs [R]."""
        return {name: metric[self.of_run] for name, metric in metrics.items()}

    def _keep(self, training: Training, trained: Ensemble) -> None:
        """Writes the trained ensembles, and a table of their errors and of how often their intervals hold."""
        folder, table = self.run.folder, pd.DataFrame(training.summary(trained))
        with folder.writing():
            write_atomically(folder.path / "dynamics.safetensors", ensemble_file(trained, self.seeds, self.data))
            write_atomically(folder.path / "dynamics.csv", table.to_csv(index=False).encode())

    def _random(self, learned: Ensemble) -> Ensemble:
        """Ensembles with random weights that see the same inputs as the learned ones."""
        random = learned.selected(torch.arange(self.run.runs, device=self.run.device), self.args.elites)
        initialise(random, generators(self.run.seeds, "random dynamics"))
        return self._round(random.requires_grad_(False))

    def _round(self, ensemble: Ensemble) -> Ensemble:
        """Lets compiled functions compute an ensemble's hidden layers in bfloat16, if those of the agent are.

        The errors on the holdout and along rollouts, and mixtures with MuJoCo, are not compiled, and stay in float32.
        """
        use_bf16(ensemble, self.run.in_bf16)
        return ensemble

    # -- rollouts -----------------------------------------------------------------------------------------------------

    def generate(self) -> None:
        """Begins an epoch: makes its rollouts with the present policy, and watches what the critics say."""
        self.watch.values()
        if not self.modelled:
            return
        args, left = self.args, self.args.rollouts
        added = ended = torch.zeros(self.run.runs, dtype=torch.int64, device=self.run.device)
        sums: dict[str, Tensor] = {}
        while left > 0:
            index = self.data.choose(self.begin())
            obs = self.data.gather(index).obs.contiguous()
            alive = (torch.arange(obs.shape[1], device=obs.device) < left).repeat(self.run.runs, 1)
            self.model.start(index)
            for step in range(args.rollout_length):
                added = added + alive.sum(1)
                if step == args.rollout_length - 1:
                    ended = ended + alive.sum(1)
                obs, alive, more = self.step(obs, alive, StepDraws(self.normal(), self.outcome(), self.member()))
                sums = {name: value + sums.get(name, 0.0) for name, value in more.items()}
            left -= obs.shape[1]
        self.run.log({name: value / added for name, value in (sums | {"last_step_share": ended}).items()})
        self.run.log({"spread_last": self.watch.spread(obs[:, :WATCHED], alive[:, :WATCHED])})
        if self.truth:
            self.comparison.log(self.learned, self.truth)

    def _step(self, obs: Tensor, alive: Tensor, draws: StepDraws) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """One step of rollouts from obs [R, B, O]: the next states, which of them go on, and sums [R]."""
        action = self.agent.act(obs, draws.action)
        prediction = self.model.step(obs, action, alive, draws)
        next_obs, reward, done = prediction.next_obs, prediction.reward, prediction.terminated
        sums = {"rollout_reward": sum_of(reward, alive)}
        if self.penalty is not None:  # a method is no condition for the compiler of torch 2.11
            penalty = self.penalty(prediction)
            reward = reward - penalty
            sums["penalty"] = sum_of(penalty, alive)
        self.buffer.put(Batch(obs, action, reward, next_obs, done.to(obs.dtype)), alive)
        goes_on = alive & ~done
        return torch.where(goes_on[..., None], next_obs, obs), goes_on, sums

    # -- batches ------------------------------------------------------------------------------------------------------

    def choose(self) -> tuple[Tensor, ...]:
        """The numbers of the transitions of a batch: in the dataset, and in the buffer."""
        real = (self.data.choose(self.choose_real()),) if self.real else ()
        return (*real, self.buffer.choose(self.choose_model())) if self.modelled else real

    def gather(self, chosen: tuple[Tensor, ...]) -> Batch:
        """The batch [R, B, ...] with these numbers: the dataset's part first."""
        parts = [self.data.gather(chosen[0])] if self.real else []
        if self.modelled:
            parts.append(self.buffer.gather(chosen[-1]))
        return Batch(*(torch.cat(tensors, 1) for tensors in zip(*parts, strict=True)))
