"""Options of environments, as words of the command line name them."""

import json
import re
from collections.abc import Sequence
from typing import Any

from algos.errors import UserError, describe

NUMBER = r"[-+]?(\d+\.|\.\d+)(e[-+]?\d+)?|\+\d+(\.\d+)?(e[-+]?\d+)?"  # that JSON does not know
PYTHON = {"True": True, "False": False, "None": None}  # as many write them
# options that scripts and commands choose themselves
RESERVED = (
    "actions", "autoreset_mode", "device", "dtype", "envs_per_run", "every_step_valid", "levels", "num_envs",
    "render_mode", "seeds", "threads", "vector_kwargs", "vectorization_mode", "wrappers",
)  # fmt: skip


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """The options of an environment that the words of --env-option name; raises UserError for what cannot be one."""
    options = pairs_of(words, "--env-option", "frame_skip=5")
    for name, value in options.items():
        if name in RESERVED:
            raise UserError(f"--env-option: {name} is no option that can be chosen: scripts and commands choose it")
        if name == "xml_file":
            check_model(value)
    return options


def check_model(file: Any) -> None:
    """Raises UserError if MuJoCo cannot read a model from this file, which may be one of Gymnasium's own."""
    import mujoco
    from gymnasium.envs.mujoco.mujoco_env import expand_model_path

    try:
        mujoco.MjModel.from_xml_path(expand_model_path(str(file)))
    except (OSError, ValueError) as error:
        raise UserError(f"--env-option xml_file={file} is no model that MuJoCo can read ({describe(error)})") from None


def pairs_of(words: Sequence[str], flag: str, example: str) -> dict[str, Any]:
    """`("xml_file=a.xml", "frame_skip=5")` -> {"xml_file": "a.xml", "frame_skip": 5}.

    Values are JSON, Python's True, False and None, or words. Raises UserError for other words, which names `flag` and
    shows the `example`.
    """
    pairs: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name.isidentifier() and equals):
            raise UserError(f"{flag} takes words such as {example}, got {word!r}")
        if name in pairs:
            raise UserError(f"{flag} names {name} twice")
        if value in PYTHON:
            pairs[name] = PYTHON[value]
            continue
        try:
            pairs[name] = float(value) if re.fullmatch(NUMBER, value) else json.loads(value)
        except ValueError:
            pairs[name] = value
    return pairs
