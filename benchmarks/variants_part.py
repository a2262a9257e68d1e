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

UNTOLD = {"dataset", "env_id", "keep_replay", "video"}  # they change no method, or are the task
GENERAL = {field.name for field in fields(RunArgs)} - {"bf16", "compile"} | UNTOLD
LONGEST = 30  # letters of a value
MOST = 4  # values that are told


def variants_part(results: Results) -> Part | None:
    """The arguments in which the algorithms of one script differ on a task; None if no script has such ones."""
    scripts: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for config in sorted(results.scores.sources, key=family_name):
        scripts[config["algorithm"]][family_name(config)].append(config)
    table = Table(["algorithm", "script", "arguments"], [])
    for script, variants in sorted(scripts.items()):
        names = {name for configs in variants.values() for config in configs for name in config.get("args", {})}
        values = {
            name: {variant: [value_of(config, name) for config in configs] for variant, configs in variants.items()}
            for name in sorted(names - GENERAL)
            if differ(variants, name)
        }
        for variant in variants if values else ():
            told = filter(None, (spoken(name, found[variant]) for name, found in values.items()))
            table.rows.append([word(variant), word(script), word("; ".join(told))])
    if not table.rows:
        return None
    text = "Algorithms that are one script differ in these arguments. All arguments of all runs are in sources.json."
    return Part("Variants", text, tables=[("What the names stand for", table)])


def value_of(config: dict[str, Any], name: str) -> str:
    """The value of an argument in words; empty if the run did not store it, or chose it by the task.

    A switch that an early run did not store was as it is by default.
    """
    default = defaults_of(config["algorithm"]).get(name)
    value = config.get("args", {}).get(name, default if isinstance(default, bool) else None)
    if value is None or value == "auto":
        return ""
    words = value if isinstance(value, list) else [value]
    return " ".join(
        plain(w) if isinstance(w, float) else str(w).lower() if isinstance(w, bool) else str(w) for w in words
    )


def differ(variants: dict[str, list[dict[str, Any]]], name: str) -> bool:
    """Whether variants have different values of an argument on the same task, as far as they are known."""
    values: dict[str, dict[str, set[str]]] = defaultdict(dict)
    for variant, configs in variants.items():
        for config in configs:
            values[config["task"]].setdefault(variant, set()).add(value_of(config, name))
    return any(len({frozenset(found - {""}) for found in of.values()} - {frozenset()}) > 1 for of in values.values())


def spoken(name: str, values: list[str]) -> str:
    """An argument with its values; empty if none is known."""
    known = sorted(set(values) - {""}, key=values.index)
    if len(known) == 1 and len(known[0]) > LONGEST:
        return f"{name}=…{known[0][known[0].rfind('/') :][-LONGEST:]}"
    few = len(known) <= MOST and all(len(value) <= LONGEST for value in known)
    return f"{name}={' or '.join(known)}" if known and few else f"{name}: several" if known else ""
