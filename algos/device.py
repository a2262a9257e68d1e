"""The device that a run trains on."""

import torch

from algos.errors import UserError
from envs.cores import core_count


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is CUDA where there is one. Raises UserError if there is no such device.

    Nothing is done on the device, so that other processes can have all of it.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device takes auto, cpu, cuda or cuda:N, got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device takes auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name}: this machine or this build of torch has no such GPU; --device cpu works")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def take(device: torch.device, tf32: bool = True) -> torch.device:
    """Makes a device the one on which this process computes, and gives it back; a GPU may round factors to TF32.

    From then on, the process has a part of the GPU's memory, and in its exclusive mode the whole GPU.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
    return device


def wait(device: torch.device) -> None:
    """Waits until a device has done all that it was told to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device, threads: int | None = None) -> str:
    """The device in words, for the configuration of a run."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {threads or torch.get_num_threads()} threads of {core_count()} cores"
