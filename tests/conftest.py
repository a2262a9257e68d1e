"""What several tests use."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test processes share two cores

import importlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from algos.run_folder import folder_of

torch.set_num_threads(1)


@pytest.fixture
def float64():
    """Everything in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def train(tmp_path):
    """Runs a script's main in this process: train("sac", seeds=("0",), …) -> Result."""

    def run(script: str, out: str = "out", **overrides) -> "Result":
        module = importlib.import_module(script)
        args = module.Args(**{"quiet": True, "out": tmp_path / out, "device": "cpu", **overrides})
        code = 0
        try:
            module.main(args)
        except SystemExit as stop:
            code = stop.code
        return Result(folder_of(args, script), code)

    return run


class Result:
    """What a run left in its folder."""

    def __init__(self, folder: Path, code: int):
        self.folder, self.code = folder, code
        self.config = json.loads((folder / "config.json").read_text())

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The tensors of the last checkpoint."""
        return load_file(max((self.folder / "checkpoint").glob("*.safetensors")))
