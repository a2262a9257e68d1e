"""Policies as things to use after training: a file with what acting needs, and observations -> actions from it.

    from algos.policy import load_policy

    policy = load_policy("runs/Hopper-v5/sac/default", seed=3)
    action = policy(obs)  # obs [O] or [B, O], of NumPy or of torch

A run writes `policy.safetensors` with every checkpoint. It holds those tensors of the agent that its policy uses, the
scaling of observations and actions where the data had one, and in its metadata, as JSON, the script, the arguments,
the task and the environment. No pickle is ever loaded.
"""

import contextlib
import importlib
import importlib.util
import inspect
import json
import math
import operator
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from algos.adapted import Adapted
from algos.agent import Agent
from algos.agent_file import WIDEST, check_values, checked, chosen, contents, description
from algos.errors import UserError, describe, warn
from algos.per_run import PerRun
from algos.run_folder import digest_of_file
from algos.stored import Stored, check
from algos.tables import run_name
from envs import Task

FILE = "policy.safetensors"
SCRIPTS = Path(__file__).parents[1] / "single_file"


# -- writing -----------------------------------------------------------------------------------------------------------


class Touched(TorchDispatchMode):
    """Notes the places in memory of all tensors that operations read."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[tuple[int, int, int]] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # torch.compiler.disable would import the compiler, for seconds
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.places |= {place(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        return func(*args, **(kwargs or {}))


def place(x: Tensor) -> tuple[int, int, int]:
    """Where a tensor lies: its storage, and the first byte in it and the one after the last."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else -1
    first = x.storage_offset() * x.itemsize
    return x.untyped_storage().data_ptr(), int(first), int(first + (last + 1) * x.itemsize)


def used_by_policy(agent: Any) -> dict[str, Tensor]:
    """Those tensors of the agent's state that its policy reads, by name."""
    obs = torch.zeros(agent.runs, 1, agent.policy_task.obs_size, device=agent.device)
    with torch.no_grad(), Touched() as touched:
        agent.policy(*inputs_at(obs, agent))

    def is_read(x: Tensor) -> bool:
        storage, first, last = place(x)
        return any(storage == s and first < end and begin < last for s, begin, end in touched.places)

    return {name: tensor for name, tensor in agent.state_dict().items() if is_read(tensor)}


def inputs_at(obs: Tensor, agent: Any) -> list[Tensor]:
    """The inputs of an agent's policy at observations [R, B, O], with themselves as goals, and at time 0."""
    takes = inspect.signature(agent.policy).parameters
    t = [torch.zeros((), dtype=torch.int64, device=obs.device)] if "t" in takes else []
    return [obs, *([obs] if "goal" in takes else []), *t]


def policy_file(
    agent: Any,
    policy: Callable[..., Tensor],
    script: str,
    environment: Mapping[str, Any],
    step: int,
    diverged: Sequence[int] = (),
    script_digest: str | None = None,
) -> bytes:
    """The bytes of a file with the policies of all runs, from which `PolicyFile` reads them.

    `policy` is what is evaluated, `agent.policy` or an `Adapted` one. `script` is the stem of the script's name, with
    the digest of its file, and `environment` says where the policy acts: env_id, options, and tasks if there are goals.
    """
    tensors = {f"agent/{name}": tensor for name, tensor in used_by_policy(agent).items()}
    tensors |= {f"made_with/{name}": tensor for name, tensor in agent.made_with.items()}
    if isinstance(policy, Adapted):
        tensors |= {f"adapted/{name}": tensor for name, tensor in policy.named_buffers(recurse=False)}
    said = description(agent) | {"script": script, "environment": environment, "step": step, "diverged": list(diverged)}
    said |= {"adapted": isinstance(policy, Adapted), "script_digest": script_digest}
    texts = {name: json.dumps(value) for name, value in said.items()}
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, texts)


# -- reading -----------------------------------------------------------------------------------------------------------


class Policy(nn.Module):
    """The deterministic policies of R runs.

    `act` maps obs [R, B, O] to actions [R, B, A], or to numbers [R, B] of discrete ones, from 0. It also takes a goal
    [R, B, G] if the policy is `with_goals`, and then the number t [] of steps since the episode began if it is `timed`.

    For one run, the policy itself can be called with obs [O] or [B, O], and goals likewise, as NumPy arrays or as
    tensors; it gives actions of the same kind. One goal may also serve all observations of a batch. Raises ValueError
    for other sizes, and for arrays with numbers that are not finite; tensors are not looked at for them, as that would
    wait for a GPU.
    """

    low: Tensor  # [A], empty if actions are discrete
    high: Tensor

    def __init__(self, agent: Any, act: Callable[..., Tensor]):
        super().__init__()
        self.agent, self.act = agent, act
        takes = inspect.signature(agent.policy).parameters
        self.with_goals, self.timed = "goal" in takes, "t" in takes
        self.register_buffer("low", inside(self.task.low, math.inf).to(agent.device), False)
        self.register_buffer("high", inside(self.task.high, -math.inf).to(agent.device), False)

    @property
    def task(self) -> Task:
        """Sizes and bounds, as the policy sees them: where frames are stacked, an observation is a stack."""
        task: Task = self.agent.policy_task
        scaling = self.act.scaling("action") if isinstance(self.act, Adapted) else None
        if not scaling:
            return task
        middle, half_range = scaling  # the agent's own bounds are those of prepared data
        return replace(task, low=tuple((middle - half_range).tolist()), high=tuple((middle + half_range).tolist()))

    def bounded(self, action: Tensor) -> Tensor:
        """Actions [..., A] within their bounds, out of which rounding may have taken them."""
        return action.clamp(self.low, self.high) if len(self.low) else action

    @torch.no_grad()
    def forward(self, obs: Any, goal: Any = None, t: int | None = None) -> Any:
        if self.agent.runs > 1:
            raise ValueError(f"this holds the policies of {self.agent.runs} runs: load one of them")
        for wanted, given, name in ((self.with_goals, goal, "goal"), (self.timed, t, "t")):
            if wanted != (given is not None):
                raise ValueError(f"this policy takes {'a' if wanted else 'no'} {name}")
        x, task = self._tensor(obs), self.agent.policy_task
        size, lead = task.obs_size, task.lead_of(tuple(x.shape))
        if len(lead) > 1 or 0 in lead:
            told = "one observation, or a batch of one or more, with one axis more"
            raise ValueError(f"this takes {told}, got the shape {tuple(x.shape)}")
        count = math.prod(lead)
        inputs = [x.reshape(1, count, size)]
        if goal is not None:
            goals, sizes = self._tensor(goal), sorted({getattr(self.agent, "goal_size", size), size})
            if goals.shape[-1:] not in [(n,) for n in sizes] or goals.shape[:-1] not in ((), (1,), lead):
                told = " or ".join(map(str, sizes))
                raise ValueError(
                    f"a goal has {told} numbers, and there is one or one for each observation, got the shape "
                    f"{tuple(goals.shape)}"
                )
            inputs.append(goals.reshape(1, -1, goals.shape[-1]).expand(1, count, -1))
        if t is not None:
            try:
                steps = operator.index(t)
            except TypeError:
                steps = -1
            if steps < 0:
                raise ValueError(f"t is the whole number of steps since the episode began, got {t}")
            inputs.append(torch.tensor(steps, device=self.agent.device))
        action = self.bounded(self.act(*inputs))[0]
        action = action.view(lead + action.shape[1:])
        return action.to(obs.device) if isinstance(obs, Tensor) else action.cpu().numpy()[()]

    def _tensor(self, x: Any) -> Tensor:
        if not isinstance(x, Tensor):
            # an array is copied, as its strides may be negative; a tensor is not looked at, which would wait for a GPU
            x = torch.as_tensor(np.array(x, np.float64, order="C")).to(torch.get_default_dtype())
            if not x.isfinite().all():
                raise ValueError("observations and goals must have finite numbers, got NaN or infinity")
        return x.to(self.agent.device, torch.get_default_dtype())


def inside(bounds: Sequence[float], way: float) -> Tensor:
    """Bounds in the default precision; where rounding took one out, the next number towards `way`."""
    exact = torch.tensor(bounds, dtype=torch.float64)
    rounded = exact.to(torch.get_default_dtype())
    out = rounded.double() > exact if way < 0 else rounded.double() < exact
    return torch.where(out, rounded.nextafter(torch.full_like(rounded, way)), rounded)


def check_policies(agent: Any, content: bytes) -> None:
    """Tries the policies of a run before they learn, and those of its file with this content.

    Raises ValueError unless `agent.policy` gives actions of the task's sizes. Warns if those that are read from the
    file, of the first and the last run, act otherwise, or cannot be read. They are tried at an observation of normal
    numbers on a CPU, and of zeros on a GPU, or where the policy refuses those.
    """
    task = agent.policy_task
    obs = torch.zeros(agent.runs, 1, task.obs_size, device=agent.device)
    wanted = [agent.runs, 1, *([] if task.discrete else [task.act_size])]
    ours = answer(agent, obs)
    if not isinstance(ours, Tensor) or list(ours.shape) != wanted:
        got = f"the shape {list(ours.shape)}" if isinstance(ours, Tensor) else f"the type {type(ours).__name__}"
        raise ValueError(f"policy must give a tensor {wanted} for observations {list(obs.shape)}, got {got}")
    if exact := agent.device.type == "cpu":
        normal = torch.randn(obs.shape, generator=torch.Generator().manual_seed(0))
        with contextlib.suppress(Exception):  # observations may have to be whole numbers
            obs, ours = normal, answer(agent, normal)
    some = sorted({0, agent.runs - 1})
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, FILE)
            path.write_bytes(content)
            file = PolicyFile(path)
        then, now = file.said["script_digest"], digest_of_file(SCRIPTS / f"{file.script}.py")
        if then and now and then != now:
            warn(f"policies will be read with single_file/{file.script}.py, which is not the script of this run")
            return
        read = file.policy(some, agent.device)
        again = answer(read.agent, obs[some])
    except OSError:  # there is no room for temporary files
        return
    except UserError as error:
        warn(f"nothing will be able to load the policies of this run ({str(error).replace(str(path), FILE)})")
        return
    apart = (again.double() - ours[some].double()).abs().max()
    # a GPU may round the products of fewer runs in another way, so that it may take another of equal actions
    if apart > (1e-5 if exact else math.inf if task.discrete else 1e-2) * ours.abs().max().clamp(min=1):
        warn(
            f"{FILE} will hold policies that act otherwise than those of this run: they are made again from the "
            "arguments, the task, and the tensors of the state that `policy` reads, so register what else `policy` "
            "needs as a buffer, or name it in `made_with`"
        )


def answer(agent: Any, obs: Tensor) -> Tensor:
    """The actions of an agent's policy at observations [R, B, O]."""
    with torch.no_grad():
        action: Tensor = agent.policy(*inputs_at(obs, agent))
    return action


class Environment(Stored):
    """Where policies act, as their file says it."""

    env_id: str
    options: dict[str, Any]
    tasks: list[str]


class PolicyFile:
    """policy.safetensors of a run; `path` is the file or the run's folder.

    `runs` has seed and setting of each run, `diverged` the numbers of those that diverged, `environment` says where the
    policies act, and `step` how long they have trained. Raises UserError if the file is missing or damaged.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path) / FILE if os.path.isdir(path) else Path(path)
        if not os.path.exists(path):  # also of a name that is too long
            raise UserError(f"there is no file or folder {path}")
        if not self.path.is_file():
            raise UserError(
                f"{self.path.parent} has no {FILE}: it is no run's folder, or its run has not come to its first "
                "checkpoint, or is of an earlier version, and the run's command with --resume writes the file from the "
                "last checkpoint (runs of stream_td have none)"
            )
        try:
            self.tensors, said = contents(self.path)
            if "algorithm" in said and "script" not in said:
                instead = (
                    f": take {self.path.with_name(FILE)}" if self.path.with_name(FILE).exists() else ", and no policies"
                )
                raise UserError(f"{self.path} holds streaming learners{instead}")
            self.script, self.algorithm = str(said["script"]), str(said["algorithm"])
            self.runs: list[dict[str, Any]] = [{"seed": int(key["seed"]), **key} for key in said["runs"]]
            self.environment: dict[str, Any] = {"env_id": "", "options": {}, "tasks": [], **said["environment"]}
            check(self.environment, Environment)
            self.task = checked(Task, said["task"])
            self.step, self.diverged = int(said["step"]), [int(number) for number in said["diverged"]]
            if not all(0 <= number < len(self.runs) for number in self.diverged):
                raise ValueError("a run that diverged is none of its runs")
            if math.prod(self.task.obs_shape) > max(WIDEST**2, *(x.numel() for x in self.tensors.values()), 0):
                raise ValueError("observations are larger than what it has for them")
            self.said, self.warned = said, False
        except UserError:
            raise
        except Exception as error:  # safetensors and pydantic have many kinds
            raise UserError(f"{self.path} is no policy's file ({describe(error)})") from None

    def policy(self, numbers: Sequence[int] | None = None, device: torch.device | str = "cpu") -> Policy:
        """The policies of the runs with these numbers, by default of all of them.

        Raises UserError if one of them diverged, if the script is none of this project's, if the file does not fit it,
        or if there is no such device.
        """
        numbers = list(range(len(self.runs))) if numbers is None else list(numbers)
        try:
            torch.zeros(1, device=device).item()
        except (AssertionError, RuntimeError) as error:
            raise UserError(f"the device {device} cannot be used ({describe(error)})") from None
        try:
            module = script_module(self.script)
            then = self.said.get("script_digest")
            if then and then != digest_of_file(SCRIPTS / f"{self.script}.py") and not self.warned:
                self.warned = True
                warn(
                    f"{self.script}.py is not as it was when {self.path} was written: the policy may act otherwise "
                    "than it learned to"
                )
            keys = [self.runs[number] for number in numbers]
            args = self._args(module, keys, device)
            seeds = [key["seed"] for key in keys]
            made_with = self._part("made_with")
            kind = getattr(module, self.algorithm)
            if not issubclass(kind, Agent):
                raise TypeError(f"{self.algorithm} is no agent")
            agent: Any = kind(args, self.task, seeds, **made_with, device=device)  # type: ignore[arg-type]
            known = agent.state_dict()
            for name, tensor in self._part("agent").items():
                if known[name].dtype != tensor.dtype:
                    raise TypeError(f"{name} has numbers of type {tensor.dtype}")
                known[name] = tensor[numbers] if tensor.dim() else tensor
            agent.load_state_dict(known)
            if lacking := set(used_by_policy(agent)) - set(self._part("agent")):
                raise KeyError(f"it lacks {min(lacking)}")
            act: Callable[..., Tensor] = agent.policy
            if self.said["adapted"]:
                parts = self._part("adapted")
                pairs = [(parts.get(f"{name}_shift"), parts.get(f"{name}_scale")) for name in ("obs", "action")]
                act = Adapted(act, *(pair if None not in pair else None for pair in pairs)).to(device)  # type: ignore[arg-type]
        except UserError:
            raise
        except Exception as error:  # from sizes and arguments that are no agent's, an agent may raise anything
            what = f"does not fit {self.script}.py, which has changed since" if self.warned else "is no policy's file"
            raise UserError(f"{self.path} {what} ({describe(error)})") from None
        for number, key in zip(numbers, keys, strict=True):
            finite = all(x[number].isfinite().all() for x in self._part("agent").values() if x.dim())
            if number in self.diverged or not finite:
                raise UserError(f"{run_name(key)} in {self.path} has diverged")
        return Policy(agent, act)

    def _part(self, name: str) -> dict[str, Tensor]:
        return {k.partition("/")[2]: x for k, x in self.tensors.items() if k.partition("/")[0] == name}

    def _args(self, module: ModuleType, keys: list[dict[str, Any]], device: torch.device | str) -> Any:
        varied = [name for name in keys[0] if name != "seed"]
        args = checked(module.Args, self.said["args"] | {name: keys[0][name] for name in varied})
        check_values(args, self.task, [key["seed"] for key in keys], self.tensors, WIDEST)
        return replace(args, **{name: PerRun([key[name] for key in keys], device) for name in varied})


def load_policy(
    path: str | Path, seed: int | None = None, device: torch.device | str = "cpu", **setting: float
) -> Policy:
    """The policy of one run; `path` is the run's folder or its policy.safetensors.

    `seed` and `setting` (values of the hyperparameters that vary) choose among the runs of the file. Raises UserError
    unless exactly one run is chosen, and as `PolicyFile` does.
    """
    file = PolicyFile(path)
    wanted = ({} if seed is None else {"seed": seed}) | setting
    return file.policy([chosen(file.path, file.runs, wanted)], device)


def script_module(script: str) -> ModuleType:
    """The module of a script, `single_file.sac`; raises UserError if there is no such script."""
    path, name = SCRIPTS / f"{script}.py", f"single_file.{script}"
    if path not in SCRIPTS.glob("*.py"):
        raise UserError(
            f"the policy was learned by a script {script!r}, which is not in {SCRIPTS}: copy it there, because its "
            "code is needed"
        )
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        if str(SCRIPTS) not in sys.path:
            sys.path.append(str(SCRIPTS))  # a script may import another, as it can where it is run
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
