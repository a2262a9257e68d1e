"""The section of a report that says how its algorithms were run: the arguments behind names, and unusual ones."""

import functools
from collections import defaultdict
from dataclasses import asdict, fields
from typing import Any

from algos.cli import RunArgs
from algos.run_folder import as_json
from benchmarks.analysis import Results
from benchmarks.parts import Part
from benchmarks.protocols import args_of, defaults_of
from benchmarks.scores import family_name, plain
from benchmarks.tables import Table, word

UNTOLD = {"dataset", "env_id", "keep_replay", "video"}  # they change no method, or are the task
GENERAL = {field.name for field in fields(RunArgs)} - {"bf16", "compile"} | UNTOLD
NAMING = {"dataset", "env_id", "actor_loss"}  # defaults depend on them
LONGEST = 30  # letters of a value
MOST = 4  # values that are told


def variants_part(results: Results) -> Part | None:
    """The arguments in which the algorithms of one script differ on a task, and others that are no defaults.

    None if there are neither.
    """
    scripts: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for config in sorted(results.scores.sources, key=family_name):
        scripts[config["algorithm"]][family_name(config)].append(config)
    table, others = (Table(["algorithm", "script", "arguments"], []) for _ in range(2))
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
        alike: dict[str, list[str]] = defaultdict(list)  # algorithms with the same arguments
        for variant, configs in variants.items():
            pairs = [(config.get("args", {}), usual(config)) for config in configs]
            unusual = {
                name: [value_of(config, name) for config in configs]
                for name in sorted(names - GENERAL - set(values) - set(results.scores.varied))
                if any(given.get(name) != ordinary.get(name) for given, ordinary in pairs)
            }
            told = filter(None, (spoken(name, found) for name, found in unusual.items()))
            alike["; ".join(told)].append(variant)
        others.rows += [[word(", ".join(them)), word(script), word(told)] for told, them in alike.items() if told]
    rest = f"{'Other arguments' if table.rows else 'Arguments'} that are not the defaults of the scripts"
    captions = ("What the names stand for", table), (rest, others)
    tables = [(caption, rows) for caption, rows in captions if rows.rows]
    if not tables:
        return None
    text = "Algorithms that are one script differ in these arguments. " * bool(table.rows)
    text += "All arguments of all runs are in sources.json."
    return Part("Variants" if table.rows else "Arguments", text, tables=tables, tables_in_markdown=2)


@functools.cache
def defaults_on(script: str, named: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """The defaults of a shipped script with these arguments, on which others depend; of other scripts, none."""
    if not (args_type := args_of(script)):
        return {}
    known = {field.name for field in fields(args_type)}
    return as_json(asdict(args_type(**{name: value for name, value in named if name in known})))


def usual(config: dict[str, Any]) -> dict[str, Any]:
    """A run's arguments, each replaced by its script's default where that is known and the argument had a use."""
    given = config.get("args", {})
    named = tuple((name, str(given[name])) for name in sorted(NAMING) if name in given)
    used = [name for name in given if given.get("expert_dataset") or not name.startswith("expert_")]
    return given | {name: value for name, value in defaults_on(config["algorithm"], named).items() if name in used}


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
