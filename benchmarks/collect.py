"""Makes offline datasets by recipe, without any download: as Minari datasets `local/<name>`, or as files.

    python -m benchmarks.collect --list
    python -m benchmarks.collect hopper-medium-v0 hopper-medium-replay-v0
    python -m benchmarks.collect maze2d-umaze-v0 --d4rl data        # also as data/maze2d-umaze-v0.hdf5
    python -m benchmarks.collect pointmaze-medium-navigate-v0 --npz data

There are recipes of these kinds, each a file in benchmarks/recipes:

    locomotion     halfcheetah, hopper and walker2d by D4RL's definitions, with
                   this project's own policies
    pointmaze      D4RL's maze2d in today's environments, and OGBench's point
                   mazes, by a controller that knows the maze
    stitching      short ways in mazes, of which tests need several
    antmaze        OGBench's, by an ant of our own that walks where such a
                   controller says
    manipulation   OGBench's cube, scene and puzzle, by its own scripted oracles

On one kind of processor, the same seed gives the same data bit for bit; on another, sums round otherwise, and episodes
of the same quality come out, with another digest, by which runs and reports tell them apart. Most recipes take a few
minutes; --list names those that take longer. A dataset lies where Minari keeps its own, $MINARI_DATASETS_PATH or
~/.minari/datasets, and `minari.load_dataset("local/...")` loads it; locomotion datasets have D4RL's reference scores,
and others none. OGBench's datasets have a second one for validation, such as `local/cube-single-play-val-v0`. If a
locomotion dataset is there already, --d4rl writes it to a file without making it anew.
"""

import difflib
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import tyro
from tqdm import tqdm

from algos.arguments import Natural, Range, check
from algos.cli import run_command
from algos.compile import can_compile
from algos.data import recipe_of
from algos.data.record import normalised
from algos.errors import UserError
from algos.folders import check_usable, writable
from benchmarks.recipes import antmaze, manipulation, stitching
from benchmarks.recipes.checkpoint import replay_rows
from benchmarks.recipes.locomotion import QUALITIES, TASKS, locomotion, replayed, shipped_policy
from benchmarks.recipes.pointmaze import (
    GYMNASIUM_MAZES,
    OGBENCH_KINDS,
    OGBENCH_MAZES,
    gymnasium_pointmaze,
    ogbench_pointmaze,
    ogbench_size,
)
from benchmarks.recipes.recipe import Recipe
from benchmarks.recipes.trajectory import Trajectory
from benchmarks.recipes.write import without_last, write_d4rl, write_minari, write_npz
from benchmarks.suite import BENCHMARKS, ROOT, read_references
from envs import d4rl


@dataclass
class Args:
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """names of the datasets to make, such as hopper-medium-v0"""
    seed: Natural = 0
    """seed of the environments and of the noise on actions"""
    steps: Annotated[int, Range(0, 100_000_000)] = 0
    """number of steps in the dataset; 0: the recipe's own number. Recipes of OGBench make whole episodes, at least one,
    and validation episodes besides; those for stitching count observations; medium-replay trains for so long"""
    d4rl: Path | None = None
    """folder for another copy, as a file in D4RL's layout"""
    npz: Path | None = None
    """folder for another copy, as files in OGBench's layout; for OGBench's datasets only"""
    overwrite: bool = False
    """replace the dataset and the files if they exist"""
    list: bool = False
    """list all recipes, with the returns of their policies"""
    quiet: bool = False
    """print nothing but errors"""


def recipes() -> dict[str, Recipe]:
    """All recipes by name."""
    recipes = [*locomotion_recipes(), *maze_recipes(), *ogbench_recipes()]
    return {recipe.name: recipe for recipe in recipes}


def locomotion_recipes() -> Iterator[Recipe]:
    """The recipes with D4RL's definitions."""
    for task, quality in itertools.product(TASKS, QUALITIES):
        replay = quality == "medium-replay"
        steps = 2_000_000 if quality == "medium-expert" else 1_000_000
        yield Recipe(
            f"{task}-{quality}-v0",
            TASKS[task],
            shipped_policy(task, "medium").training["steps"] if replay else steps,
            f"{quality} data of {TASKS[task]}",
            partial(training_data, task) if replay else partial(locomotion, task, quality),
            by="uniformly random actions" if quality == "random" else "SAC",
            takes="some minutes, as it trains SAC" if replay else "",
            policies=tuple((task, name) for name in ("medium", "expert") if name in quality),
            states=True,
            like=f"{task}-{quality}-v2",
        )


def maze_recipes() -> Iterator[Recipe]:
    """The recipes in Gymnasium-Robotics' point mazes."""
    for maze, dense in itertools.product(GYMNASIUM_MAZES, (False, True)):
        name, env_id = f"maze2d-{maze.lower()}{'-dense' * dense}-v0", f"PointMaze_{maze}{'Dense' * dense}-v3"
        about = f"a controller's way from goal to goal in {env_id}"
        yield Recipe(name, env_id, 1_000_000, about, partial(gymnasium_pointmaze, maze, dense), by="controller")
    for maze, env_id in stitching.ENVS.items():
        groups = len(stitching.GROUPS[maze])
        yield Recipe(
            f"stitching-{maze}-v0",
            env_id,
            1_000_000,
            f"a controller's ways within {groups} group{'s' * (groups > 1)} of cells in {env_id}",
            partial(stitching.stitching, maze),
            by="controller",
            env_options=stitching.OPTIONS,
        )


def ogbench_recipes() -> Iterator[Recipe]:
    """The recipes with OGBench's definitions."""
    for maze, kind in itertools.product(OGBENCH_MAZES, OGBENCH_KINDS):
        name, rows = f"pointmaze-{maze}-{kind}-v0", ogbench_size(maze, kind)[1]
        about, data = f"OGBench's {name}, with its validation episodes", partial(ogbench_pointmaze, maze, kind)
        yield Recipe(name, f"pointmaze-{maze}-v0", 1_000_000, about, data, by="controller", ogbench_rows=rows)
    for maze, kind in itertools.product(antmaze.MAZES, antmaze.NOISE):
        episodes, rows = ogbench_size(maze, kind)
        yield Recipe(
            f"antmaze-{maze}-{kind}-v0",
            f"antmaze-{maze}-v0",
            episodes * (rows - 1),
            f"OGBench's antmaze-{maze}-{kind}-v0 by our own expert, with its validation episodes",
            partial(antmaze.ogbench_antmaze, maze, kind),
            by="SAC",
            takes=f"{'half' if kind == 'explore' else 'a quarter of'} an hour or more",
            policies=(("ant-direction", "expert"),),
            ogbench_rows=rows,
        )
    for task in manipulation.ORACLES:
        yield Recipe(
            f"{task}-play-v0",
            f"{task}-v0",
            manipulation.EPISODES * (manipulation.ROWS - 1),
            f"OGBench's {task}-play-v0, with its validation episodes",
            partial(manipulation.ogbench_play, task),
            by="scripted oracle",
            takes="half an hour or more",
            ogbench_rows=manipulation.ROWS,
        )


def training_data(task: str, seed: int, steps: int) -> Iterator[Trajectory]:
    """Trains the medium policy again, and gives the transitions that its replay buffer holds in the end."""
    training = shipped_policy(task, "medium").training
    with tempfile.TemporaryDirectory() as place:
        flags = ["--total-steps", str(steps), "--eval-episodes", "0", "--keep-replay", "--quiet", "--out", place]
        words = [word for word in training["flags"] if word != "--compile" or can_compile()]
        command = [sys.executable, str(ROOT / "single_file" / "sac.py"), *words, *flags]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise UserError(f"training SAC on {task} ended with exit code {done.returncode}: {last}")
        rows = replay_rows(next(Path(place).rglob("checkpoint/*.safetensors")), training["run"])
    return replayed(rows, training["env_id"], training["seed"])


# -- the command -------------------------------------------------------------------------------------------------------


def gather(recipe: Recipe, args: Args, validation: bool = False) -> list[Trajectory]:
    """All trajectories of a recipe, with a progress bar."""
    gathered = []
    steps = args.steps or recipe.steps
    total = steps // 10 if validation else steps
    with tqdm(unit=" steps", desc=recipe.name, total=total, disable=args.quiet or None) as progress:
        for trajectory in recipe.trajectories(args.seed, steps, validation):
            gathered.append(trajectory)
            progress.update(len(trajectory.reward) - bool(recipe.ogbench_rows))
    return gathered


def files(name: str, args: Args) -> dict[str, Path]:
    """The files that --d4rl and --npz ask for, by the name of their layout."""
    paths = {}
    if args.d4rl:
        paths["d4rl"] = args.d4rl / f"{name}.hdf5"
    if args.npz:
        paths["npz"] = args.npz / f"{name.replace('-val-v0', '-v0-val')}.npz"
    return paths


def stored(recipe: Recipe, args: Args) -> Any:
    """The dataset, if --d4rl asks for its file, the same command made it before and it has all of it; else None."""
    import minari
    from minari.storage import get_dataset_path

    if args.overwrite or not args.d4rl or not recipe.states:
        return None
    if not get_dataset_path(f"local/{recipe.name}").exists():
        return None
    data = minari.load_dataset(f"local/{recipe.name}")
    made = recipe_of(data.storage.metadata.get("description"))
    return data if made.get("command") == command(recipe, args) else None


def check_recipe(recipe: Recipe, args: Args) -> None:
    """Raises UserError for everything that is known to be wrong before any data is made."""
    from minari.storage import get_dataset_path

    for name in recipe.datasets:
        try:
            place = get_dataset_path(f"local/{name}")
        except OSError as error:  # it makes the folder of all datasets
            raise UserError(f"MINARI_DATASETS_PATH: {error}") from None
        check_usable(place, "MINARI_DATASETS_PATH")
        if place.exists() and not args.overwrite and stored(recipe, args) is None:
            raise UserError(f"local/{name} is there already, in {place}; pass --overwrite to make it anew")
        for layout, path in files(name, args).items():
            if path.exists() and not args.overwrite:
                raise UserError(f"--{layout}: {path} is there already; pass --overwrite to replace it")
    if "medium-replay" in recipe.name and args.seed:
        raise UserError(f"--seed: {recipe.name} is the data of one training run, so it has the seed of its policy")
    if args.npz and not recipe.ogbench_rows:
        raise UserError("--npz: only recipes of OGBench's mazes and manipulation can be written in OGBench's layout")
    try:
        policies(recipe)
    except FileNotFoundError as error:
        raise UserError(f"{recipe.name}: {error}") from None


def make(recipe: Recipe, args: Args) -> None:
    """Makes the datasets of a recipe, and the files that are asked for."""
    if (data := stored(recipe, args)) is not None:
        path = files(recipe.name, args)["d4rl"]
        trajectories = [
            Trajectory(e.observations, e.actions, e.rewards, e.terminations, e.truncations, e.infos or {})
            for e in data.iterate_episodes()
        ]
        try:
            write_d4rl(recipe, path, trajectories)
        except OSError as error:
            raise UserError(f"{recipe.name} cannot be written: {error}") from None
        if not args.quiet:
            print(f"local/{recipe.name} was there already; {path} holds the same")
        return
    if recipe.takes and not (args.quiet or args.steps):
        print(f"{recipe.name} takes {recipe.takes}", flush=True)
    try:
        made = {name: gather(recipe, args, validation=name != recipe.name) for name in recipe.datasets}
    except (FileNotFoundError, ModuleNotFoundError, ValueError) as error:
        raise UserError(f"{recipe.name}: {error}") from None
    for name, whole in made.items():
        paths = files(name, args)
        readable = [without_last(t) for t in whole] if recipe.ogbench_rows else whole
        returns = np.array([t.reward.sum(dtype=np.float64) for t in readable])
        description = {"about": recipe.about, "command": command(recipe, args), "seed": args.seed}
        description |= {"mean_return": round(float(returns.mean()), 2), "policies": policies(recipe)}
        description |= {"by": recipe.by}
        try:
            if "npz" in paths:
                write_npz(paths["npz"], whole)
            if "d4rl" in paths:
                write_d4rl(recipe, paths["d4rl"], readable)
            place = write_minari(recipe, name, readable, description)
        except OSError as error:
            raise UserError(f"{recipe.name} cannot be written: {error}") from None
        if not args.quiet:
            steps = sum(len(t.reward) for t in readable)
            print(
                f"local/{name}: {steps:,} steps in {len(readable):,} episodes, mean return {returns.mean():,.1f} "
                f"({returns.min():,.1f} to {returns.max():,.1f}), in {place}"
            )


def command(recipe: Recipe, args: Args) -> str:
    """The command that makes the dataset of a recipe."""
    steps = f" --steps {args.steps}" if args.steps else ""
    return f"python -m benchmarks.collect {recipe.name} --seed {args.seed}{steps}"


def policies(recipe: Recipe) -> dict[str, Any]:
    """How the policies of a recipe were trained, by their names; FileNotFoundError says how to make a missing one."""
    return {f"{task}-{quality}": shipped_policy(task, quality).training for task, quality in recipe.policies}


def show() -> None:
    """Prints all recipes, with what is known of their policies."""
    references = read_references(BENCHMARKS / "references" / "recipes.csv").set_index("task")[["low", "high"]].T
    for recipe in recipes().values():
        parts = [recipe.about, *([f"takes {recipe.takes}"] if recipe.takes else [])]
        try:
            parts += [merits(name, training, references) for name, training in policies(recipe).items()]
        except FileNotFoundError:
            parts.append("its policy has not been made yet")
        print(f"{recipe.name:<34} {'; '.join(parts)}")


def merits(name: str, training: dict[str, Any], references: pd.DataFrame) -> str:
    """The speed of a policy if it walks in any direction, otherwise its return and scores by two tables."""
    after = f"after {training['steps']:,} steps"
    if "speed" in training:
        return f"{name} walks {training['speed']:.2f} m/s towards its direction {after}"
    total, task = training["return"], d4rl.find(f"{name}-v2")
    scores = f"D4RL score {normalised(total, task.low, task.high):.1f}"
    scores += f", by our own references {normalised(total, *references[f'local/{name}-v0']):.1f}"
    return f"{name} returns {total:,.0f} ({scores}) {after}"


def main(args: Args) -> None:
    check(args)
    if args.list or not args.names:
        show()
        return
    known = recipes()
    for name in args.names:
        if name.removeprefix("local/") not in known:
            close = difflib.get_close_matches(name.removeprefix("local/"), known, n=3)
            hint = f"the closest names are {', '.join(close)}" if close else "--list names all"
            raise UserError(f"there is no recipe {name!r}; {hint}")
    for name in args.names:
        check_recipe(known[name.removeprefix("local/")], args)
    for folder, flag in ((args.d4rl, "--d4rl"), (args.npz, "--npz")):
        if folder:
            writable(folder, flag)
    for name in args.names:
        make(known[name.removeprefix("local/")], args)


if __name__ == "__main__":
    run_command(main)
