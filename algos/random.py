"""Random numbers that depend on a run's own seed only, drawn in blocks so that a step costs no launch for each run."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from envs.seeding import sub_seed

BLOCK = 1 << 18  # numbers that one run draws at once: 1 MB


def generators(seeds: Sequence[int], name: str, device: torch.device | str = "cpu") -> list[torch.Generator]:
    """One generator for each run, for one purpose."""
    return [torch.Generator(device).manual_seed(sub_seed(seed, name)) for seed in seeds]


class RandomSequence:
    """An endless sequence of random tensors [R, *shape]: calling it gives the next one.

    `kind` is "normal" (standard normal), "uniform" ([0, 1)) or "integers" ([0, 2^63), to be reduced modulo a number).
    Each run has a generator of its own; a block of tensors is filled by one launch for each run and handed out slice by
    slice. The length of a block depends on the shape alone, because the numbers that a generator gives depend on how
    many are asked for at once.
    """

    def __init__(
        self, seeds: Sequence[int], name: str, shape: Sequence[int], kind: str, device: torch.device | str = "cpu"
    ):
        self.generators = generators(seeds, name, device)
        self.kind = kind
        dtype = torch.int64 if kind == "integers" else torch.get_default_dtype()
        count = max(1, min(1024, BLOCK // math.prod(shape)))
        self.block = torch.empty(len(seeds), count, *shape, dtype=dtype, device=device)
        self._fill()

    def __call__(self) -> Tensor:
        if self.used == self.block.shape[1]:
            self._fill()
        tensor = self.block[:, self.used]
        self.used += 1
        return tensor

    def _fill(self) -> None:
        self.before = torch.stack([g.get_state() for g in self.generators])
        for rows, generator in zip(self.block, self.generators, strict=True):
            if self.kind == "normal":
                rows.normal_(generator=generator)
            elif self.kind == "uniform":
                rows.uniform_(generator=generator)
            else:
                rows.random_(generator=generator)
        self.used = 0

    def state_dict(self) -> dict[str, Tensor]:
        """The generators as they were before the current block, and how much of the block is used."""
        return {"generators": self.before, "used": torch.tensor(self.used)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for generator, saved in zip(self.generators, state["generators"].cpu(), strict=True):
            generator.set_state(saved.clone())  # a view into a larger tensor makes torch crash
        self._fill()
        self.used = int(state["used"])
        if not 0 <= self.used <= self.block.shape[1]:
            raise ValueError(f"{self.used} of {self.block.shape[1]} random numbers cannot have been used")


class Random:
    """All random numbers of R runs: endless sequences, each with a name of its own.

    Runs with the same seed, such as the settings of a grid, see the same numbers. Its state is part of a checkpoint.
    Raises ValueError if a name is taken, because two sequences of one name would give the same numbers.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str = "cpu"):
        self.seeds, self.device = list(seeds), torch.device(device)
        self.sequences: dict[str, RandomSequence] = {}

    def normal(self, name: str, *shape: int) -> RandomSequence:
        """Standard normal numbers [R, *shape]."""
        return self._sequence(name, shape, "normal")

    def uniform(self, name: str, *shape: int) -> RandomSequence:
        """Numbers [R, *shape] from [0, 1)."""
        return self._sequence(name, shape, "uniform")

    def integers(self, name: str, *shape: int) -> RandomSequence:
        """Integers [R, *shape] from [0, 2^63), to be reduced modulo a number."""
        return self._sequence(name, shape, "integers")

    def _sequence(self, name: str, shape: tuple[int, ...], kind: str) -> RandomSequence:
        if name in self.sequences:
            raise ValueError(f"there is a sequence of random numbers named {name!r} already: choose another name")
        self.sequences[name] = draws = RandomSequence(self.seeds, name, shape, kind, self.device)
        return draws

    def state_dict(self) -> dict[str, Tensor]:
        return {f"{name}.{key}": t for name, draws in self.sequences.items() for key, t in draws.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes up a state; raises ValueError if it has a sequence that was not made yet: it would start anew."""
        if late := {key.rpartition(".")[0] for key in state} - set(self.sequences):
            raise ValueError(f"make the sequence of random numbers {min(late)!r} before the training begins")
        for name, draws in self.sequences.items():
            draws.load_state_dict({key: state[f"{name}.{key}"] for key in ("generators", "used")})
