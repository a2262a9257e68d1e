"""The section of a report that says what its names stand for: arguments of algorithms that are the same script."""

from collections import defaultdict
from dataclasses import fields
from typing import Any

from algos.cli import RunArgs
from benchmarks.analysis import Results
from benchmarks.parts import Part
from benchmarks.protocols import defaults_of
from benchmarks.scores import family_name, plain
from benchmarks.tables import Table, word

GENERAL = {field.name for field in fields(RunArgs)} - {"bf16", "compile"} | {
    "dataset",
    "env_id",
    "keep_replay",
    "video",
}
LONGEST = 30  # letters of a value


def variants_part(results: Results) -> Part | None:
    """The arguments in which the algorithms of one script differ on a task; None if no script has several."""
    scripts: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for config in sorted(results.scores.sources, key=family_name):
        scripts[config["algorithm"]][family_name(config)].append(config)
    table = Table(["algorithm", "script", "arguments"], [])
    for script, variants in sorted(scripts.items()):
        if len(variants) == 1:
            continue
        known = defaults_of(script)
        arguments = {name: [known | config.get("args", {}) for config in configs] for name, configs in variants.items()}
        settings = (config.get("setting", {}) for configs in variants.values() for config in configs)
        varied = {name for setting in settings for name in setting}
        names = {name for configs in arguments.values() for config in configs for name in config}
        differing = [name for name in sorted(names - GENERAL - varied) if differ(variants, known, name)]
        for variant, configs in arguments.items():
            told = [spoken_values(name, [config.get(name) for config in configs]) for name in differing]
            table.rows.append([word(variant), word(script), word(", ".join(filter(None, told)))])
    if not table.rows:
        return None
    text = (
        "These algorithms are variants of the same script; here are the arguments in which they differ. All arguments "
        "of all runs are in sources.json."
    )
    return Part("Variants", text, tables=[("What the names stand for", table)])


def differ(variants: dict[str, list[dict[str, Any]]], known: dict[str, Any], name: str) -> bool:
    """Whether variants have different values of an argument on the same task; an absent one has the default."""
    values: dict[str, set[str]] = defaultdict(set)
    for configs in variants.values():
        for config in configs:
            values[config["task"]].add(str(config.get("args", {}).get(name, known.get(name))))
    return any(len(found - {str(None)}) > 1 for found in values.values())  # None: an early run did not store it


def spoken_values(name: str, values: list[Any]) -> str:
    """An argument with its value, if all tasks have the same; empty if it is not known."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return f"{name}={spoken_value(known[0])}" if len(set(map(str, known))) == 1 else f"{name}: one for each task"


def spoken_value(value: Any) -> str:
    """A value of an argument in words."""
    if isinstance(value, list):
        return " ".join(map(spoken_value, value))
    word = plain(value) if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
    return word if len(word) <= LONGEST else f"…{word[word.rfind('/', 0, -1) :][-LONGEST:]}"
