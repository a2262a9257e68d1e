"""Exports the policy of one seed to ONNX, for use without torch.

    python -m benchmarks.export runs/Hopper-v5/sac/default --seed best --onnx policy.onnx

The model maps `obs` [B, O] (and `goal` [B, G], or the step `t` [] of the episode, where the policy takes them) to
`action` [B, A], or to numbers [B] of discrete actions. Images are flattened with their channels first, as
`np.moveaxis(image, -1, 0).reshape(1, -1)` does it. The normaliser of observations and the scaling of actions are
inside. Before the file is written, the model is run on at least 1,000 observations, and has to give the same actions as
torch. They are those of the policy's own episodes, all that a table has, or made up for a policy that learned from data
without an environment. This needs the extra `onnx`: pip install -e '.[onnx]'
"""

import contextlib
import importlib.util
import io
import json
import logging
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from torch import Tensor, nn

from algos.adapted import Adapted
from algos.arguments import check
from algos.checkpoint import write_atomically
from algos.cli import run_command
from algos.errors import UserError, describe, warn
from algos.evaluate import Evaluator
from algos.folders import check_file, writable
from algos.policy import Policy
from algos.tables import run_name
from benchmarks.trained import Place, Trained, check_words

CHECKED = 1_000  # observations
TOLERANCE = 1e-4  # of actions, relative to their size where that is above 1


@dataclass
class Args:
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """folder of a run, such as runs/Hopper-v5/sac/default"""
    onnx: Path
    """the file to write"""
    seed: str = "best"
    """the seed: best, median or worst by the last 10% of training, or a number"""
    setting: tuple[str, ...] = ()
    """its hyperparameters where they varied, such as `tau=0.01`"""
    env_id: str = ""
    """Gymnasium id of the environment whose observations the model is checked on; by default that of the run, if it has
    one"""


class Batched(nn.Module):
    """The policy of one run without its run axis: obs [B, O], maybe goal [B, G], maybe t [] -> action [B, A]."""

    def __init__(self, policy: Policy):
        super().__init__()
        self.policy = policy

    def forward(self, obs: Tensor, goal: Tensor | None = None, t: Tensor | None = None) -> Tensor:
        inputs = [obs[None], *([] if goal is None else [goal[None]]), *([] if t is None else [t])]
        return self.policy.bounded(self.policy.act(*inputs))[0]


def observed(policy: Policy, place: Place) -> list[dict[str, Tensor]]:
    """Observations as inputs, with goals and, for each time apart, with it.

    They are at least 1,000 of the policy's episodes, or for a table all that it has.
    """
    evaluator = place.evaluator(policy, 4)
    groups: list[dict[str, NDArray]] = []
    if isinstance(evaluator, Evaluator):
        for number in range(CHECKED):  # of episodes, which may have one step only
            for t, moment in enumerate(evaluator.play(policy.act, "export", [number])):
                goals = {"goal": evaluator.last_goals[moment.running]} if policy.with_goals else {}
                groups.append({"obs": moment.obs[moment.running], **goals, "t": np.array(t)})
                if sum(len(group["obs"]) for group in groups) >= CHECKED:
                    break
            else:
                continue
            break
    else:
        times = range(evaluator.table.horizon)
        shown = [np.asarray(evaluator.venv.all_observations(t)) for t in times]  # type: ignore[attr-defined]
        groups = [{"obs": obs, "t": np.array(t)} for t, obs in zip(times, shown, strict=True)]
    evaluator.close()
    if not policy.timed:
        names = [name for name in groups[0] if name != "t"]
        groups = [{name: np.concatenate([group[name] for group in groups]) for name in names}]
    return [
        {name: torch.as_tensor(x, dtype=torch.int64 if name == "t" else torch.float32) for name, x in group.items()}
        for group in groups
    ]


def made_up(policy: Policy) -> list[dict[str, Tensor]]:
    """1,000 made up observations as inputs, and goals: normal numbers, in the data's scale if it was standardised."""
    obs = torch.randn(CHECKED, policy.task.obs_size, generator=torch.Generator().manual_seed(0))
    if isinstance(policy.act, Adapted) and (scaling := policy.act.scaling("obs")):
        obs = obs * scaling[1] + scaling[0]
    return [{"obs": obs} | ({"goal": obs.flip(0)} if policy.with_goals else {})]


def exported(policy: Policy, inputs: dict[str, Tensor]) -> bytes:
    """The ONNX model of the policy of one run; raises UserError if it cannot be exported."""
    import onnx

    batch = torch.export.Dim("batch", min=1)
    sizes: Any = {name: {0: batch} if x.dim() else None for name, x in inputs.items()}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)  # of the exporter, which says what it leaves out
        try:
            with torch.no_grad():
                program = torch.onnx.export(
                    Batched(policy).eval(), kwargs=inputs, dynamo=True, dynamic_shapes=sizes,
                    input_names=list(inputs), output_names=["action"], verbose=False, external_data=False,
                )  # fmt: skip
            assert program
            model = program.model_proto
        except Exception as error:  # the exporter has many kinds, and wraps what it found
            said = re.sub(r"\x1b\[\d+m", "", describe(error.__cause__ or error))[:150]
            raise UserError(f"this policy has an operation that ONNX or its exporter does not know ({said}…)") from None
        finally:
            logging.disable(logging.NOTSET)
    for part in (model.graph, *model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer):
        part.ClearField("metadata_props")  # lines and paths of this code
        part.ClearField("doc_string")
    onnx.checker.check_model(model)
    return model.SerializeToString()


def difference(model: bytes, policy: Policy, groups: list[dict[str, Tensor]]) -> float:
    """The greatest difference of an action of the model from torch's, relative where actions are above 1."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    greatest = 0.0
    for inputs in groups:
        (ours,) = session.run(["action"], {name: x.numpy() for name, x in inputs.items()})
        with torch.no_grad():
            theirs = Batched(policy)(**inputs).numpy()
        if ours.shape != theirs.shape:
            raise UserError(f"the exported policy gives actions of the shape {ours.shape}, and torch {theirs.shape}")
        apart = (np.abs(ours - theirs) / np.maximum(1, np.abs(theirs))).max()
        greatest = float(np.maximum(greatest, apart))  # NaN stays, where max() would forget it
    return greatest


def main(args: Args) -> None:
    check(args)
    check_words(args)
    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]:
        raise UserError(f"--onnx needs the package {missing[0]}: pip install -e '.[onnx]'")
    if args.onnx.suffix != ".onnx":
        raise UserError(f"--onnx must end in .onnx, got {args.onnx}")
    check_file(args.onnx, "--onnx")
    trained = Trained(args.run)
    numbers = trained.numbers([args.seed], args.setting, "--seed")
    if len(numbers) > 1:
        raise UserError(f"--seed names {len(numbers)} runs, and one can be exported: say which with --setting")
    policy = trained.file.policy(numbers)
    groups, source = [], "made up observations, as the run has no environment"
    if env_id := args.env_id or trained.file.environment["env_id"]:
        try:
            groups, source = observed(policy, Place(trained, args.env_id)), f"observations of {env_id}"
        except UserError as error:
            if args.env_id:
                raise
            source = "made up observations"
            warn(f"{error}: observations are made up")
    groups = groups or made_up(policy)
    model = exported(policy, groups[0])
    count = sum(len(group["obs"]) for group in groups)
    if not (apart := difference(model, policy, groups)) <= TOLERANCE:
        raise UserError(f"the exported policy differs from torch's by {apart:.2g} on {count:,} observations")
    writable(args.onnx.parent, "--onnx")
    write_atomically(args.onnx, model)
    key = trained.file.runs[numbers[0]]
    shapes = json.dumps({name: ["B", *x.shape[1:]] if x.dim() else [] for name, x in groups[0].items()})
    print(f"wrote {run_name(key)} of {trained.config['algorithm']} to {args.onnx} ({len(model) / 1024:,.0f} KiB)")
    shape = policy.task.obs_shape
    image = f", images of {shape} flattened" if len(shape) > 1 else ""
    print(f"inputs {shapes}{image}; within {apart:.1g} of torch's actions on {count:,} {source}")


if __name__ == "__main__":
    run_command(main)
