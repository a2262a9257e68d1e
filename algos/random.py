"""Random numbers that depend on a run's own seed only, drawn in blocks so that a step costs no launch per run."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from envs.seeding import sub_seed

BLOCK = 1 << 18  # numbers of one refill of one run: 1 MB


def generators(seeds: Sequence[int], name: str, device: torch.device | str = "cpu") -> list[torch.Generator]:
    """One generator a run, for one purpose."""
    return [torch.Generator(device).manual_seed(sub_seed(seed, name)) for seed in seeds]


class Stream:
    """An endless sequence of draws [R, *shape]: `stream()` gives the next one.

    `kind` is "normal" (standard normal), "uniform" ([0, 1)) or "integer" ([0, 2^63), reduce it modulo what you need).
    Each run has a generator of its own; a block of draws is filled by one launch per run and handed out slice by slice.
    The length of a block depends on the shape alone, because the numbers that a generator gives depend on how many are
    asked for at once.
    """

    def __init__(
        self, seeds: Sequence[int], name: str, shape: Sequence[int], kind: str, device: torch.device | str = "cpu"
    ):
        self.generators = generators(seeds, name, device)
        self.kind = kind
        dtype = torch.int64 if kind == "integer" else torch.get_default_dtype()
        draws = max(1, min(1024, BLOCK // math.prod(shape)))
        self.block = torch.empty(len(seeds), draws, *shape, dtype=dtype, device=device)
        self._fill()

    def __call__(self) -> Tensor:
        if self.used == self.block.shape[1]:
            self._fill()
        draw = self.block[:, self.used]
        self.used += 1
        return draw

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
