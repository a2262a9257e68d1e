"""Makes offline datasets by recipe, without any download: as Minari datasets `local/<name>`, or as files.

    python -m benchmarks.collect --list
    python -m benchmarks.collect hopper-medium-v0 hopper-medium-replay-v0
    python -m benchmarks.collect maze2d-umaze-v0 --d4rl data        # also as data/maze2d-umaze-v0.hdf5
    python -m benchmarks.collect pointmaze-medium-navigate-v0 --npz data

The recipes of locomotion tasks (benchmarks/recipes/locomotion.py) take D4RL's definitions and this project's own
policies; those of mazes (benchmarks/recipes/pointmaze.py) take a controller that knows the maze. On one machine, the
same seed gives the same data. A dataset lies where Minari keeps its own, $MINARI_DATASETS_PATH or ~/.minari/datasets,
and `minari.load_dataset("local/...")` loads it; its reference scores are D4RL's where D4RL has any. If a locomotion
dataset is there already, --d4rl writes it to a file without making it anew.
"""

import difflib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import tyro
from numpy.typing import NDArray
from tqdm import tqdm

from algos.arguments import Natural, check
from algos.cli import report_errors
from algos.data import minari_in, recipe_of
from algos.errors import UserError
from benchmarks.recipes.checkpoint import replay_rows
from benchmarks.recipes.locomotion import QUALITIES, TASKS, locomotion, replayed, shipped_policy
from benchmarks.recipes.pointmaze import (
    GYMNASIUM_MAZES,
    OGBENCH_KINDS,
    OGBENCH_MAZES,
    gymnasium_pointmaze,
    ogbench_pointmaze,
)
from benchmarks.recipes.trajectory import Trajectory
from benchmarks.suite import BENCHMARKS, ROOT, read_references
from envs import d4rl, find_spec
from envs.mujoco import quiet_mujoco


@dataclass
class Args:
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """names of the datasets to make, such as hopper-medium-v0"""
    seed: Natural = 0
    """seed of the environments and of the noise on actions"""
    steps: Natural = 0
    """number of steps in the dataset; 0: the recipe's own number"""
    d4rl: Path | None = None
    """folder for another copy, as a file in D4RL's layout"""
    npz: Path | None = None
    """folder for another copy, as files in OGBench's layout; for OGBench's mazes only"""
    overwrite: bool = False
    """replace the dataset and the files if they exist"""
    list: bool = False
    """list all recipes, with the returns of their policies"""
    quiet: bool = False
    """print nothing but errors"""


@dataclass(frozen=True)
class Recipe:
    """A dataset that can be made."""

    name: str
    env_id: str
    steps: int
    about: str  # one phrase on the data, for lists and for the dataset's own description
    like: str | None = None  # the task of D4RL whose reference scores the dataset takes


def recipes() -> dict[str, Recipe]:
    """All recipes by name."""
    recipes = []
    for task, quality in itertools.product(TASKS, QUALITIES):
        steps = 2_000_000 if quality == "medium-expert" else 1_000_000
        name = f"{task}-{quality}"
        if quality == "medium-replay":
            steps = shipped_policy(task, "medium").training["steps"]
        recipes.append(Recipe(f"{name}-v0", TASKS[task], steps, f"{quality} data of {TASKS[task]}", f"{name}-v2"))
    for maze, dense in itertools.product(GYMNASIUM_MAZES, (False, True)):
        name, env_id = f"maze2d-{maze.lower()}{'-dense' * dense}-v0", f"PointMaze_{maze}{'Dense' * dense}-v3"
        recipes.append(Recipe(name, env_id, 1_000_000, f"a controller's way from goal to goal in {env_id}"))
    for maze, kind in itertools.product(OGBENCH_MAZES, OGBENCH_KINDS):
        name = f"pointmaze-{maze}-{kind}-v0"
        recipes.append(
            Recipe(name, f"pointmaze-{maze}-v0", 1_000_000, f"OGBench's {name}, with its validation episodes")
        )
    return {recipe.name: recipe for recipe in recipes}


def trajectories(recipe: Recipe, args: Args, validation: bool = False) -> Iterator[Trajectory]:
    """The data of a recipe; with `validation`, that of OGBench's validation dataset."""
    family, *words = recipe.name.split("-")[:-1]
    steps = args.steps or recipe.steps
    if family in TASKS:
        if words == ["medium", "replay"]:
            return training_data(family, args)
        return locomotion(family, "-".join(words), args.seed, steps)
    if family == "maze2d":
        maze = next(m for m in GYMNASIUM_MAZES if m.lower() == words[0])
        return gymnasium_pointmaze(maze, "dense" in words, args.seed, steps)
    rows = 201 if words[1] == "stitch" else 2001 if words[0] == "giant" else 1001
    return ogbench_pointmaze(words[0], words[1], args.seed, max(steps // (rows - 1), 1), validation)


def training_data(task: str, args: Args) -> Iterator[Trajectory]:
    """Trains the medium policy again, and gives the transitions that its replay buffer holds in the end."""
    training = shipped_policy(task, "medium").training
    with tempfile.TemporaryDirectory() as place:
        steps = args.steps or training["steps"]
        flags = ["--total-steps", str(steps), "--eval-episodes", "0", "--keep-replay", "--quiet", "--out", place]
        words = [
            word for word in training["flags"] if word != "--compile" or shutil.which("g++") or shutil.which("clang++")
        ]
        if not args.quiet:
            print(f"trains SAC for {steps:,} steps, which takes some minutes", flush=True)
        command = [sys.executable, str(ROOT / "single_file" / "sac.py"), *words, *flags]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise UserError(f"training SAC on {task} ended with exit code {done.returncode}: {last}")
        rows = replay_rows(next(Path(place).rglob("*.safetensors")), training["run"])
    return replayed(rows, training["env_id"], training["seed"])


# -- writers -----------------------------------------------------------------------------------------------------------


def observations(recipe: Recipe, t: Trajectory) -> dict[str, NDArray]:
    """The observations in the environment's own layout: one array, or three where it has goals."""
    if not recipe.env_id.startswith("PointMaze_"):
        return {"observation": t.obs}
    return {"achieved_goal": t.obs[:, :2], "desired_goal": t.infos["goal"], "observation": t.obs}


def infos_of(recipe: Recipe, t: Trajectory) -> dict[str, NDArray]:
    """The states of the simulator before each step, for locomotion, where observations do not have all of them."""
    return t.infos if recipe.name.partition("-")[0] in TASKS else {}


def write_minari(recipe: Recipe, name: str, data: list[Trajectory], description: dict[str, Any]) -> Path:
    """Writes the Minari dataset `local/<name>`; gives its folder, which appears only when the dataset is complete."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.storage import get_dataset_path

    env_id = find_spec(recipe.env_id).id
    place = get_dataset_path(f"local/{name}")
    with quiet_mujoco():
        env = gym.make(env_id)
    boxes: dict[str, gym.Space] = {
        key: gym.spaces.Box(-np.inf, np.inf, part.shape[1:], np.float32)
        for key, part in observations(recipe, data[0]).items()
    }
    goals = len(boxes) > 1
    buffers = []
    for number, t in enumerate(data):
        parts: Any = observations(recipe, t) if goals else t.obs
        buffers.append(
            EpisodeBuffer(
                id=number, observations=parts, actions=t.action, rewards=t.reward, terminations=t.terminated,
                truncations=t.truncated, infos=infos_of(recipe, t),
            )
        )  # fmt: skip
    like = d4rl.find(recipe.like) if recipe.like else None
    root = get_dataset_path("")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".collect-") as aside:
        warnings.filterwarnings("ignore", module="minari")  # missing authors and links
        try:
            with quiet_mujoco(), minari_in(Path(aside)):
                minari.create_dataset_from_buffers(
                    f"local/{name}",
                    buffers,
                    env=env,
                    eval_env=env,
                    observation_space=gym.spaces.Dict(boxes) if goals else boxes["observation"],
                    action_space=env.action_space,
                    algorithm_name=description["by"],
                    author="Seedbed",
                    description=json.dumps(description),
                    ref_min_score=like.low if like else None,
                    ref_max_score=like.high if like else None,
                    data_format="hdf5",
                )
        finally:
            env.close()
        place.parent.mkdir(parents=True, exist_ok=True)
        old = Path(aside) / "old"
        try:
            if place.exists():
                place.rename(old)
            (Path(aside) / "local" / name).rename(place)
        except BaseException:
            if old.exists() and not place.exists():
                old.rename(place)
            raise
    return place


def write_d4rl(recipe: Recipe, path: Path, data: list[Trajectory]) -> None:
    """Writes a file in D4RL's layout, with true next observations and timeouts; goals are parts of observations."""
    import h5py

    obs = [np.concatenate(list(observations(recipe, t).values()), 1) for t in data]
    columns: dict[str, list[Any]] = {
        "observations": [o[:-1] for o in obs],
        "next_observations": [o[1:] for o in obs],
        "actions": [t.action for t in data],
        "rewards": [t.reward for t in data],
        "terminals": [t.terminated for t in data],
        "timeouts": [t.truncated for t in data],
    }
    for name in data[0].infos:
        columns[f"infos/{name}"] = [t.infos[name][: len(t.reward)] for t in data]
    part = path.with_name(path.name + ".part")
    with h5py.File(part, "w") as file:
        for name, arrays in columns.items():
            file.create_dataset(name, data=np.concatenate(arrays), compression="gzip", compression_opts=1)
    os.replace(part, path)


def write_npz(path: Path, data: list[Trajectory]) -> None:
    """Writes a file in OGBench's layout, which lacks the last observation of each episode."""
    part = path.with_name(path.name + ".part.npz")
    np.savez_compressed(
        part,
        observations=np.concatenate([t.obs[:-1] for t in data]),
        actions=np.concatenate([t.action for t in data]),
        terminals=np.concatenate([t.truncated for t in data]),
        qpos=np.concatenate([t.infos["qpos"][:-1] for t in data]),
        qvel=np.concatenate([t.infos["qvel"][:-1] for t in data]),
    )
    os.replace(part, path)


def without_last(t: Trajectory) -> Trajectory:
    """A trajectory without its last step, which no reader of OGBench's files sees: they lack its next observation."""
    infos = {name: values[:-1] for name, values in t.infos.items()}
    return Trajectory(t.obs[:-1], t.action[:-1], t.reward[:-1], t.terminated[1:], t.truncated[1:], infos)


# -- the command -------------------------------------------------------------------------------------------------------


def gather(recipe: Recipe, args: Args, validation: bool = False) -> list[Trajectory]:
    """All trajectories of a recipe, with a progress bar."""
    gathered = []
    with tqdm(unit=" steps", desc=recipe.name, disable=args.quiet or None) as progress:
        for trajectory in trajectories(recipe, args, validation):
            gathered.append(trajectory)
            progress.update(len(trajectory.reward))
    return gathered


def dataset_names(recipe: Recipe) -> list[str]:
    """The names of the datasets that a recipe makes: OGBench's validation episodes are a dataset of their own."""
    val = [recipe.name.replace("-v0", "-val-v0")] if recipe.name.startswith("pointmaze") else []
    return [recipe.name, *val]


def files(name: str, args: Args) -> dict[str, Path]:
    """The files that --d4rl and --npz ask for, by the name of their layout."""
    paths = {}
    if args.d4rl:
        paths["d4rl"] = args.d4rl / f"{name}.hdf5"
    if args.npz:
        paths["npz"] = args.npz / f"{name.replace('-val-v0', '-v0-val')}.npz"
    return paths


def stored(recipe: Recipe, args: Args) -> Any:
    """The locomotion dataset, if --d4rl asks for its file and the same command made it before; else None."""
    import minari
    from minari.storage import get_dataset_path

    if args.overwrite or not args.d4rl or recipe.name.partition("-")[0] not in TASKS:
        return None
    if not get_dataset_path(f"local/{recipe.name}").exists():
        return None
    data = minari.load_dataset(f"local/{recipe.name}")
    made = recipe_of(data.storage.metadata.get("description"))
    return data if made.get("command") == command(recipe, args) else None


def check_recipe(recipe: Recipe, args: Args) -> None:
    """Raises UserError for everything that is known to be wrong before any data is made."""
    from minari.storage import get_dataset_path

    for name in dataset_names(recipe):
        place = get_dataset_path(f"local/{name}")
        if place.exists() and not args.overwrite and stored(recipe, args) is None:
            raise UserError(f"local/{name} is there already, in {place}; pass --overwrite to make it anew")
        for layout, path in files(name, args).items():
            if path.exists() and not args.overwrite:
                raise UserError(f"--{layout}: {path} is there already; pass --overwrite to replace it")
    if "medium-replay" in recipe.name and args.seed:
        raise UserError(f"--seed: {recipe.name} is the data of one training run, so it has the seed of its policy")
    for name, folder in (("d4rl", args.d4rl), ("npz", args.npz)):
        if folder:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"--{name}: cannot make {folder}: {error}") from None
    if args.npz and not recipe.name.startswith("pointmaze"):
        raise UserError("--npz: only recipes of OGBench's mazes can be written in OGBench's layout")


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
    try:
        made = {name: gather(recipe, args, validation="-val-" in name) for name in dataset_names(recipe)}
    except (FileNotFoundError, ModuleNotFoundError, ValueError) as error:
        raise UserError(f"{recipe.name}: {error}") from None
    for name, whole in made.items():
        paths = files(name, args)
        readable = [without_last(t) for t in whole] if recipe.name.startswith("pointmaze") else whole
        returns = np.array([t.reward.sum(dtype=np.float64) for t in readable])
        description = {"about": recipe.about, "command": command(recipe, args), "seed": args.seed}
        description |= {"mean_return": round(float(returns.mean()), 2), "policies": policies(recipe)}
        description |= {"by": maker(recipe)}
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


def maker(recipe: Recipe) -> str:
    """Who acted in the data, for the dataset's description."""
    if recipe.name.partition("-")[0] not in TASKS:
        return "controller"
    return "uniformly random actions" if "-random-" in recipe.name else "SAC"


def command(recipe: Recipe, args: Args) -> str:
    """The command that makes the dataset of a recipe."""
    steps = f" --steps {args.steps}" if args.steps else ""
    return f"python -m benchmarks.collect {recipe.name} --seed {args.seed}{steps}"


def policies(recipe: Recipe) -> dict[str, Any]:
    """How the policies of a recipe were trained, by their names."""
    task = recipe.name.partition("-")[0]
    qualities = [quality for quality in ("medium", "expert") if quality in recipe.name and task in TASKS]
    return {f"{task}-{quality}": shipped_policy(task, quality).training for quality in qualities}


def show() -> None:
    """Prints all recipes, with the returns of their policies, and their scores by two tables of references."""
    references = read_references(BENCHMARKS / "references" / "recipes.csv").set_index("task")[["low", "high"]].T
    for recipe in recipes().values():
        parts = [recipe.about]
        for name, training in policies(recipe).items():
            total, (low, high) = training["return"], references[f"local/{name}-v0"]
            scores = f"D4RL score {d4rl.score(f'{name}-v2', total):.1f}"
            scores += f", by our own references {100 * (total - low) / (high - low):.1f}"
            parts.append(f"{name} returns {total:,.0f} ({scores}) after {training['steps']:,} steps")
        print(f"{recipe.name:<34} {'; '.join(parts)}")


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
    for name in args.names:
        make(known[name.removeprefix("local/")], args)


if __name__ == "__main__":
    args = tyro.cli(Args, description=__doc__)
    report_errors(lambda: main(args))
