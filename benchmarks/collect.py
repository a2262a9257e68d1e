"""Makes offline datasets by recipe, without any download: as Minari datasets `local/<name>`, or as files.

    python -m benchmarks.collect --list
    python -m benchmarks.collect hopper-medium-v0 hopper-medium-replay-v0
    python -m benchmarks.collect maze2d-umaze-v0 --d4rl data        # also as data/maze2d-umaze-v0.hdf5
    python -m benchmarks.collect pointmaze-medium-navigate-v0 --npz data

Recipes of locomotion tasks (envs/locomotion.py) take D4RL's definitions with this project's own policies, those of
mazes (envs/pointmaze.py) a controller that knows the maze. The same seed gives the same data on one machine. A dataset
lies where Minari keeps its own, $MINARI_DATASETS_PATH or ~/.minari/datasets, and `minari.load_dataset("local/...")`
loads it; its reference scores are D4RL's where there are any. With --d4rl, a locomotion dataset that is there already
is written as a file without being made anew.
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
from algos.data import minari_in, recipe_of
from algos.errors import UserError
from algos.run import report_errors
from benchmarks.suite import HERE, ROOT, read_references
from envs import d4rl, make_vec, register
from envs.locomotion import QUALITIES, TASKS, locomotion, policy_of, replayed
from envs.mujoco import quiet_mujoco
from envs.pointmaze import GYMNASIUM_MAZES, OGBENCH_KINDS, OGBENCH_MAZES, gymnasium_pointmaze, ogbench_pointmaze
from envs.recorded import Episode


@dataclass
class Args:
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """datasets to make, without `local/`"""
    seed: Natural = 0
    """of environments and noise"""
    steps: Natural = 0
    """steps of the dataset; 0: the recipe's own number"""
    d4rl: Path | None = None
    """folder for a file of D4RL's layout as well"""
    npz: Path | None = None
    """folder for files of OGBench's layout as well, of its mazes"""
    overwrite: bool = False
    """replace a dataset and files of that name"""
    list: bool = False
    """names of all recipes, and what is known of their policies"""
    quiet: bool = False
    """print nothing but errors"""


@dataclass(frozen=True)
class Recipe:
    """A dataset that can be made. `like`: the task of D4RL whose reference scores it has."""

    name: str
    env_id: str
    steps: int
    about: str
    like: str | None = None


def recipes() -> dict[str, Recipe]:
    """All of them by name."""
    found = []
    for task, quality in itertools.product(TASKS, QUALITIES):
        steps = 2_000_000 if quality == "medium-expert" else 1_000_000
        name = f"{task}-{quality}"
        if quality == "medium-replay":
            steps = policy_of(task, "medium").facts["steps"]
        found.append(Recipe(f"{name}-v0", TASKS[task], steps, f"{quality} data of {TASKS[task]}", f"{name}-v2"))
    for maze, dense in itertools.product(GYMNASIUM_MAZES, (False, True)):
        name, env_id = f"maze2d-{maze.lower()}{'-dense' * dense}-v0", f"PointMaze_{maze}{'Dense' * dense}-v3"
        found.append(Recipe(name, env_id, 1_000_000, f"a controller's way from goal to goal in {env_id}"))
    for maze, kind in itertools.product(OGBENCH_MAZES, OGBENCH_KINDS):
        name = f"pointmaze-{maze}-{kind}-v0"
        found.append(Recipe(name, f"pointmaze-{maze}-v0", 1_000_000, f"OGBench's {name}, with its validation episodes"))
    return {recipe.name: recipe for recipe in found}


def episodes(recipe: Recipe, args: Args, validation: bool = False) -> Iterator[Episode]:
    """What a recipe makes."""
    family, *words = recipe.name.split("-")[:-1]
    steps = args.steps or recipe.steps
    if family in TASKS:
        if words == ["medium", "replay"]:
            return training(family, args)
        return locomotion(family, "-".join(words), args.seed, steps)
    if family == "maze2d":
        maze = next(m for m in GYMNASIUM_MAZES if m.lower() == words[0])
        return gymnasium_pointmaze(maze, "dense" in words, args.seed, steps)
    rows = 201 if words[1] == "stitch" else 2001 if words[0] == "giant" else 1001
    return ogbench_pointmaze(words[0], words[1], args.seed, max(steps // (rows - 1), 1), validation)


def training(task: str, args: Args) -> Iterator[Episode]:
    """Trains the medium policy again, and gives what its replay holds in the end."""
    facts = policy_of(task, "medium").facts
    with tempfile.TemporaryDirectory() as place:
        steps = args.steps or facts["steps"]
        flags = ["--total-steps", str(steps), "--eval-episodes", "0", "--keep-replay", "--quiet", "--out", place]
        words = [
            word for word in facts["flags"] if word != "--compile" or shutil.which("g++") or shutil.which("clang++")
        ]
        if not args.quiet:
            print(f"trains SAC for {steps:,} steps, which takes some minutes", flush=True)
        command = [sys.executable, str(ROOT / "single_file" / "sac.py"), *words, *flags]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise UserError(f"training SAC on {task} ended with exit code {done.returncode}: {last}")
        from safetensors.numpy import load_file

        rows = load_file(next(Path(place).rglob("*.safetensors")))[f"replay/rows.{facts['run']}"]
    venv = make_vec(facts["env_id"])
    sizes = venv.single_observation_space.shape, venv.single_action_space.shape
    venv.close()
    return replayed(rows, *(shape[0] for shape in sizes if shape))


# -- writers -----------------------------------------------------------------------------------------------------------


def observed(recipe: Recipe, e: Episode) -> dict[str, NDArray]:
    """What the environment shows, in its own order: one array, or three where it has goals."""
    if not recipe.env_id.startswith("PointMaze_"):
        return {"observation": e.obs}
    return {"achieved_goal": e.obs[:, :2], "desired_goal": e.infos["goal"], "observation": e.obs}


def write_minari(recipe: Recipe, name: str, found: list[Episode], args: Args, facts: dict[str, Any]) -> Path:
    """A Minari dataset `local/<name>`, which appears when all of it is there."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.storage import get_dataset_path

    register(recipe.env_id)
    place = get_dataset_path(f"local/{name}")
    with quiet_mujoco():
        env = gym.make(recipe.env_id)
    boxes: dict[str, gym.Space] = {
        key: gym.spaces.Box(-np.inf, np.inf, part.shape[1:], np.float32)
        for key, part in observed(recipe, found[0]).items()
    }
    goals = len(boxes) > 1
    buffers = []
    for number, e in enumerate(found):
        parts: Any = observed(recipe, e) if goals else e.obs
        buffers.append(
            EpisodeBuffer(
                id=number, observations=parts, actions=e.action, rewards=e.reward, terminations=e.terminated,
                truncations=e.truncated, infos={},
            )
        )  # fmt: skip
    like = d4rl.find(recipe.like) if recipe.like else None
    root = get_dataset_path("")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".collect-") as aside:
        warnings.filterwarnings("ignore", module="minari")  # about authors and links
        try:
            with quiet_mujoco(), minari_in(Path(aside)):
                minari.create_dataset_from_buffers(
                    f"local/{name}",
                    buffers,
                    env=env,
                    eval_env=env,
                    observation_space=gym.spaces.Dict(boxes) if goals else boxes["observation"],
                    action_space=env.action_space,
                    algorithm_name=facts["by"],
                    author="Seedbed",
                    description=json.dumps(facts),
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


def write_d4rl(recipe: Recipe, path: Path, found: list[Episode]) -> None:
    """A file of D4RL's layout, with true next observations and timeouts; goals are parts of observations."""
    import h5py

    obs = [np.concatenate(list(observed(recipe, e).values()), 1) for e in found]
    columns: dict[str, list[Any]] = {
        "observations": [o[:-1] for o in obs],
        "next_observations": [o[1:] for o in obs],
        "actions": [e.action for e in found],
        "rewards": [e.reward for e in found],
        "terminals": [e.terminated for e in found],
        "timeouts": [e.truncated for e in found],
    }
    for name in found[0].infos:
        columns[f"infos/{name}"] = [e.infos[name][: len(e.reward)] for e in found]
    part = path.with_name(path.name + ".part")
    with h5py.File(part, "w") as file:
        for name, arrays in columns.items():
            file.create_dataset(name, data=np.concatenate(arrays), compression="gzip", compression_opts=1)
    os.replace(part, path)


def write_npz(path: Path, found: list[Episode]) -> None:
    """A file of OGBench's layout: as many observations as actions, the last of an episode leading nowhere."""
    part = path.with_name(path.name + ".part.npz")
    np.savez_compressed(
        part,
        observations=np.concatenate([e.obs[:-1] for e in found]),
        actions=np.concatenate([e.action for e in found]),
        terminals=np.concatenate([e.truncated for e in found]),
        qpos=np.concatenate([e.infos["qpos"][:-1] for e in found]),
        qvel=np.concatenate([e.infos["qvel"][:-1] for e in found]),
    )
    os.replace(part, path)


def without_last(e: Episode) -> Episode:
    """An episode without its last step, as the files of OGBench, which lack its next observation, are read."""
    infos = {name: values[:-1] for name, values in e.infos.items()}
    return Episode(e.obs[:-1], e.action[:-1], e.reward[:-1], e.terminated[1:], e.truncated[1:], infos)


# -- the command -------------------------------------------------------------------------------------------------------


def gather(recipe: Recipe, args: Args, validation: bool = False) -> list[Episode]:
    """All episodes of a recipe, with a progress bar."""
    found = []
    with tqdm(unit=" steps", desc=recipe.name, disable=args.quiet or None) as progress:
        for episode in episodes(recipe, args, validation):
            found.append(episode)
            progress.update(len(episode.reward))
    return found


def parts_of(recipe: Recipe) -> list[str]:
    """The datasets that a recipe makes: OGBench's have validation episodes apart."""
    val = [recipe.name.replace("-v0", "-val-v0")] if recipe.name.startswith("pointmaze") else []
    return [recipe.name, *val]


def files(name: str, args: Args) -> dict[str, Path]:
    """The files that are asked for, by the name of their layout."""
    found = {}
    if args.d4rl:
        found["d4rl"] = args.d4rl / f"{name}.hdf5"
    if args.npz:
        found["npz"] = args.npz / f"{name.replace('-val-v0', '-v0-val')}.npz"
    return found


def stored(recipe: Recipe, args: Args) -> Any:
    """A Minari dataset of locomotion that the same command made before and that is asked for as a file, or None."""
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
    """Raises UserError for what can be known to be wrong before anything is made."""
    from minari.storage import get_dataset_path

    for name in parts_of(recipe):
        place = get_dataset_path(f"local/{name}")
        if place.exists() and not args.overwrite and stored(recipe, args) is None:
            raise UserError(f"local/{name} is there already, in {place}: pass --overwrite to make it anew")
        for layout, path in files(name, args).items():
            if path.exists() and not args.overwrite:
                raise UserError(f"--{layout}: {path} is there already: pass --overwrite to replace it")
    if "medium-replay" in recipe.name and args.seed:
        raise UserError(f"--seed: {recipe.name} is what one training run saw, so it has the seed of its policy")
    for name, folder in (("d4rl", args.d4rl), ("npz", args.npz)):
        if folder:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"--{name}: cannot make {folder}: {error}") from None
    if args.npz and not recipe.name.startswith("pointmaze"):
        raise UserError("--npz: only recipes of OGBench's mazes have its layout")


def make(recipe: Recipe, args: Args) -> None:
    """Makes the datasets of a recipe."""
    if (data := stored(recipe, args)) is not None:
        path = files(recipe.name, args)["d4rl"]
        found = [
            Episode(e.observations, e.actions, e.rewards, e.terminations, e.truncations, {})
            for e in data.iterate_episodes()
        ]
        try:
            write_d4rl(recipe, path, found)
        except OSError as error:
            raise UserError(f"{recipe.name} cannot be written: {error}") from None
        if not args.quiet:
            print(f"local/{recipe.name} was there already; {path} holds the same")
        return
    try:
        made = {name: gather(recipe, args, validation="-val-" in name) for name in parts_of(recipe)}
    except (FileNotFoundError, ModuleNotFoundError, ValueError) as error:
        raise UserError(f"{recipe.name}: {error}") from None
    for name, whole in made.items():
        paths = files(name, args)
        found = [without_last(e) for e in whole] if recipe.name.startswith("pointmaze") else whole
        returns = np.array([e.reward.sum(dtype=np.float64) for e in found])
        facts = {"about": recipe.about, "command": command(recipe, args), "seed": args.seed}
        facts |= {"mean_return": round(float(returns.mean()), 2), "policies": policies(recipe), "by": maker(recipe)}
        try:
            if "npz" in paths:
                write_npz(paths["npz"], whole)
            if "d4rl" in paths:
                write_d4rl(recipe, paths["d4rl"], found)
            place = write_minari(recipe, name, found, args, facts)
        except OSError as error:
            raise UserError(f"{recipe.name} cannot be written: {error}") from None
        if not args.quiet:
            steps = sum(len(e.reward) for e in found)
            print(
                f"local/{name}: {steps:,} steps in {len(found):,} episodes, mean return {returns.mean():,.1f} "
                f"({returns.min():,.1f} to {returns.max():,.1f}), in {place}"
            )


def maker(recipe: Recipe) -> str:
    """What acted."""
    if recipe.name.partition("-")[0] not in TASKS:
        return "controller"
    return "uniformly random actions" if "-random-" in recipe.name else "SAC"


def command(recipe: Recipe, args: Args) -> str:
    steps = f" --steps {args.steps}" if args.steps else ""
    return f"python -m benchmarks.collect {recipe.name} --seed {args.seed}{steps}"


def policies(recipe: Recipe) -> dict[str, Any]:
    """What is known of the policies that a recipe takes."""
    task = recipe.name.partition("-")[0]
    taken = [quality for quality in ("medium", "expert") if quality in recipe.name and task in TASKS]
    return {f"{task}-{quality}": policy_of(task, quality).facts for quality in taken}


def show() -> None:
    """Prints all recipes, and the returns of their policies with their scores by D4RL's references and by our own."""
    own = read_references(HERE / "references" / "recipes.csv").set_index("task")[["low", "high"]].T
    for recipe in recipes().values():
        parts = [recipe.about]
        for name, facts in policies(recipe).items():
            total, (low, high) = facts["return"], own[f"local/{name}-v0"]
            scores = f"D4RL score {d4rl.score(f'{name}-v2', total):.1f}"
            scores += f", by our own references {100 * (total - low) / (high - low):.1f}"
            parts.append(f"{name} returns {total:,.0f} ({scores}) after {facts['steps']:,} steps")
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
