"""The base of every agent: a module that needs nothing but arguments, a task, seeds and a device."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from algos.errors import warn
from algos.nn import initialise
from algos.optim import Adam
from algos.per_run import PerRun
from algos.random import generators
from envs import Task

Module = TypeVar("Module", bound=nn.Module)


class Agent(nn.Module):
    """R agents of one algorithm, one for each seed, which learn side by side and independently of each other.

    It needs no run, no folder and no environment. It registers all of its state (parameters, buffers, target networks,
    optimisers, counters), so that `state_dict` and `load_state_dict` make it go on exactly. Every tensor of the state
    that has axes has the run axis first, [R, ...].

    `args` are the script's arguments, in which hyperparameters may be a `PerRun`, whose values move to the agent's
    device; `task` has sizes and bounds. Raises ValueError where a `PerRun` has not one value for each seed.
    """

    def __init__(self, args: Any, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__()
        self.task, self.seeds, self.device = task, list(seeds), torch.device(device)
        self.runs = len(self.seeds)
        self.args = args
        self.made_with: dict[str, Tensor] = {}  # further arguments of the constructor
        self.initialised: set[str] = set()  # names of modules whose weights were drawn
        self.told: set[str] = set()  # what `check` has warned of
        for name, value in vars(args).items():
            if not isinstance(value, PerRun):
                continue
            if len(value.values) != self.runs:
                raise ValueError(f"{name} has {len(value.values)} values for {self.runs} runs: give one for each seed")
            value.values = value.values.to(self.device)

    @property
    def policy_task(self) -> Task:
        """The task as its policy sees it, whose observations may be stacks of the last frames."""
        return self.task

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Copies a state into this agent's tensors; raises ValueError for `assign`, which would replace them."""
        if assign:
            raise ValueError("an agent's optimisers hold its tensors: load its state without assign")
        return super().load_state_dict(state_dict, strict)

    def initialise(self, name: str, module: Module) -> Module:
        """Draws a module's weights, those of each run from its own seed and this name, and moves it to the device.

        Raises ValueError if the name is taken, because two modules of one name would begin with the same weights.
        """
        if name in self.initialised:
            raise ValueError(f"a module named {name!r} was initialised already: choose another name")
        self.initialised.add(name)
        initialise(module, generators(self.seeds, name))
        return module.to(self.device)

    def check(self) -> None:
        """Raises ValueError for a tensor of the state that has axes, and not the run axis first.

        Warns of tensors, modules and optimisers that the agent has and its state has not, because a checkpoint loses
        them; of weights that were never drawn; and of parameters that two optimisers hold, or none though one holds the
        rest of their module. What it has warned of, it does not say again.
        """
        state = self.state_dict(keep_vars=True)
        for name, tensor in state.items():
            if tensor.dim() and len(tensor) != self.runs:
                shape = list(tensor.shape)
                first = f"all that {self.runs} runs learn has them first, [{self.runs}, …]"
                raise ValueError(f"{name} is {shape}: {first}; a constant is a buffer with persistent=False")
        kept, known = {id(tensor) for tensor in state.values()}, set(self.modules())
        lost = [
            name
            for module in known
            for name, value in vars(module).items()
            if name not in ("_parameters", "_buffers", "_modules", "made_with", "args")
            for part in parts_of(value)
            if (isinstance(part, Tensor) and id(part) not in kept)
            or (isinstance(part, nn.Module | torch.optim.Optimizer) and part not in known)
        ]
        self._warn_of(
            "no checkpoint will hold {} of the agent: register tensors as buffers (constants with persistent=False), "
            "and modules, such as the optimisers of algos.optim, as attributes",
            lost,
        )
        self._warn_of(
            "the weights of {} were never drawn: unless you have loaded them, make the module with "
            "self.initialise(name, module), and a Target of it after that",
            [
                name for name, layer in self.named_modules()
                if hasattr(layer, "reset") and hasattr(layer, "lead") and not getattr(layer, "drawn", False)
            ],
        )  # fmt: skip
        held = Counter(id(p) for module in self.modules() if isinstance(module, Adam) for p in module.variables)
        learns = {name: p for name, p in self.named_parameters() if p.requires_grad}
        self._warn_of("two optimisers move {}", [name for name, p in learns.items() if held[id(p)] > 1])
        partly = {name.partition(".")[0] for name, p in learns.items() if held[id(p)]}
        self._warn_of(
            "no optimiser moves {}, though one moves the rest of the module",
            [name for name, p in learns.items() if not held[id(p)] and name.partition(".")[0] in partly],
        )

    def _warn_of(self, sentence: str, names: Iterable[str]) -> None:
        """Warns of what has these names and was not told yet, which the sentence has in place of {}."""
        if new := sorted(set(names) - self.told):
            self.told.update(new)
            warn(sentence.format(", ".join(new)))


def parts_of(value: Any) -> list[Any]:
    """What lists, tuples and dictionaries hold, or the value itself."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return [value] if inner is None else [part for one in inner for part in parts_of(one)]
