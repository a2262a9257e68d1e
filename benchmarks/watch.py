"""Shows what the trained policies of a run do: one episode of each seed, side by side, with the return so far.

    python -m benchmarks.watch runs/Hopper-v5/sac/default                      the best, the median and the worst seed
    python -m benchmarks.watch runs/Hopper-v5/sac/default --seeds 0 1 --out hopper.mp4
    python -m benchmarks.watch runs/Hopper-v5/sac/default --human              in a window

It writes an mp4, also on a machine without a display, if MuJoCo finds a renderer there (EGL or OSMesa); the encoder
comes with the extra `video`. Without a GPU, a second of video takes some seconds. In an environment with goals, the
video shows one task.
"""

import multiprocessing
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from gymnasium.vector import AutoresetMode

from algos.arguments import Natural, Range, check
from algos.cli import run_command
from algos.errors import UserError
from algos.evaluate import Evaluator
from algos.film import Shot, encoder_problem, film
from algos.folders import check_file, writable
from algos.tables import run_name
from benchmarks.trained import RANKS, Place, Trained, check_words
from envs.goals import make_goal_vec
from envs.make import TABULAR, make_vec

MOST = 8  # episodes side by side


@dataclass
class Args:
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """folder of a run, such as runs/Hopper-v5/sac/default"""
    seeds: tuple[str, ...] = RANKS
    """seeds to show: best, median or worst by the last 10% of training, or numbers"""
    out: Path | None = None
    """the video; by default RUN/watch.mp4; not with --human"""
    setting: tuple[str, ...] = ()
    """hyperparameters of the runs to show where they varied, such as `tau=0.01`"""
    human: bool = False
    """open a window instead, and show one seed after the other"""
    seconds: Annotated[float, Range(0, 3_600, above=True)] = 20.0
    """seconds of video at most; a window shows whole episodes"""
    episode: Natural = 0
    """number of the episode, each of which begins in another way"""
    task: str = ""
    """name of the task, where the environment has goals; by default the first one"""
    env_id: str = ""
    """Gymnasium id of the environment; by default that of the run"""
    env_option: tuple[str, ...] = ()
    """options of the environment, such as `xml_file=./other.xml`"""


def played(trained: Trained, place: Place, numbers: list[int], episode: int, among: list[int]) -> list[Shot]:
    """An episode of each of the runs with these numbers, which are the best, median or worst `among` some."""
    policy = trained.file.policy(numbers)
    evaluator = place.evaluator(policy, 1)
    assert isinstance(evaluator, Evaluator)
    nothing = np.zeros(0)  # observations are not kept
    moments = [m._replace(obs=nothing) for m in evaluator.play(policy.act, "watch", [episode] * len(numbers))]
    evaluator.close()
    actions = np.stack([moment.action for moment in moments])[:, :, 0]  # [T, R, A]
    running = np.stack([moment.running for moment in moments])[:, :, 0]
    totals = np.sum([moment.reward for moment in moments], 0)[:, 0]
    task = evaluator.places[0][0]
    shots, ranked = [], trained.ranks(among) if len(among) > 1 else {}
    for i, number in enumerate(numbers):
        ranks = [rank for rank in RANKS if ranked.get(rank) == number]
        name = f"{', '.join(ranks)}: " * bool(ranks) + run_name(trained.file.runs[number])
        steps = int(running[:, i].sum())
        print(f"{name}: return {totals[i]:,.1f} in {steps:,} steps")
        seed = evaluator.seed_of(i, "watch", task, episode, 0)
        shots.append(Shot(place.env_id, seed, actions[:steps, i], task, place.options, name))
    return shots


def in_window(shots: list[Shot]) -> None:
    """Plays episodes in a window, one after the other."""
    for shot in shots:
        options: dict[str, Any] = shot.options | {"render_mode": "human"}
        if shot.task:
            venv: Any = make_goal_vec(shot.env_id, [shot.task], **options)
        else:
            venv = make_vec(shot.env_id, 1, AutoresetMode.DISABLED, **options)
        print(shot.caption)
        venv.reset(seed=[shot.seed])
        for action in shot.actions:
            venv.step(action.astype(venv.action_space.dtype).reshape(venv.action_space.shape))
        venv.close()


def main(args: Args) -> None:
    check(args)
    check_words(args)
    trained = Trained(args.run)
    place = Place(trained, args.env_id, args.env_option)
    if place.env_id.startswith(TABULAR):
        raise UserError(f"{place.env_id} is a table, which has no picture")
    if args.task and args.task not in place.tasks:
        raise UserError(f"--task: {place.env_id} has no task {args.task!r}; it has {', '.join(place.tasks) or 'none'}")
    place.tasks = [args.task] if args.task else place.tasks[:1]
    numbers = trained.numbers(args.seeds, args.setting)
    if len(numbers) > MOST:
        raise UserError(f"--seeds names {len(numbers)} runs, and at most {MOST} fit beside each other")
    out = args.out or trained.folder / "watch.mp4"
    if out.suffix != ".mp4":
        raise UserError(f"--out must end in .mp4, got {out}")
    if args.human and sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ):
        raise UserError("--human needs a display, and there is none here: leave it out, and a video is written")
    if not args.human:
        check_file(out)
        if reason := encoder_problem():  # before episodes are played
            raise UserError(reason)
    place.try_out(trained.file.policy(numbers))
    shots = played(trained, place, numbers, args.episode, trained.numbers((), args.setting))
    if args.human:
        window = multiprocessing.get_context("spawn").Process(target=in_window, args=(shots,))
        window.start()  # in a process of its own: a renderer may end that with a signal
        window.join()
        if window.exitcode:
            raise UserError(f"--human: {place.env_id} cannot be shown on this display")
        return
    writable(out.parent)
    if reason := film({out: shots}, seconds=args.seconds):
        raise UserError(reason)
    print(f"wrote {out}")


if __name__ == "__main__":
    run_command(main)
