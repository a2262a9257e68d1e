"""Films the first episode of each task of an evaluation, where a renderer and an encoder work.

MuJoCo chooses its renderer when it is imported, so that a process of its own plays the episodes again, from their seeds
and actions: `python -m algos.film FILE`.
"""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from algos.errors import UserError, describe

SIZE = 256  # pixels of each edge
EVERY = 8  # steps from one frame to the next: without a GPU, a frame takes a tenth of a second
FPS = 15


def film(env_id: str, tasks: list[str], seeds: list[int], actions: np.ndarray, folder: Path) -> str:
    """Writes <task>.mp4 for each task: the episode with that seed and these actions [tasks, T, A], NaN after its end.

    Returns a sentence that says where they are, or why there are none.
    """
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        return "there is no video, because the package imageio-ffmpeg is missing: pip install -e '.[video]'"
    root = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    if "DISPLAY" not in os.environ:
        environment.setdefault("MUJOCO_GL", "egl")  # software rendering, where the system has it
    with tempfile.TemporaryDirectory() as aside:
        file = Path(aside) / "episodes.npz"
        np.savez(file, env_id=env_id, tasks=tasks, seeds=seeds, actions=actions)
        command = [sys.executable, "-m", "algos.film", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason is known"])[-1]
            return f"there is no video, because rendering {env_id} failed here ({reason})"
        folder.mkdir(parents=True, exist_ok=True)
        for task in tasks:
            shutil.copyfile(Path(aside) / f"{task}.mp4", folder / f"{task}.mp4")  # of another disk perhaps
    return f"videos of the first seed in {folder}"


def main(file: Path) -> None:
    """Plays the episodes in a file, and writes their videos beside it."""
    try:
        with np.load(file) as stored:
            env_id, tasks, seeds, actions = (stored[name] for name in ("env_id", "tasks", "seeds", "actions"))
    except (OSError, LookupError, ValueError, TypeError, EOFError, BadZipFile) as error:
        raise UserError(f"{file} holds no episodes that `film` wrote ({describe(error)})") from None
    import imageio_ffmpeg

    from envs.goals import make_goal_vec

    options: dict[str, Any] = {"render_mode": "rgb_array", "width": SIZE, "height": SIZE}
    with contextlib.ExitStack() as stack:
        films: list[Any] = []  # a world for each task, because the marks of goals belong to the model
        writers = []
        for task in tasks:
            films.append(stack.enter_context(contextlib.closing(make_goal_vec(str(env_id), [str(task)], **options))))
            path = str(file.with_name(f"{task}.mp4"))
            writer = imageio_ffmpeg.write_frames(path, (SIZE, SIZE), fps=FPS, macro_block_size=1)
            writer.send(None)
            writers.append(stack.enter_context(contextlib.closing(writer)))
        for venv, writer, seed, played in zip(films, writers, seeds, actions, strict=True):
            venv.reset(seed=[int(seed)])
            played = played[np.isfinite(played[:, 0])]
            for step, action in enumerate(played):
                if step % EVERY == 0:
                    writer.send(np.ascontiguousarray(venv.worlds.worlds[0].render()))
                venv.step(action[None].astype(venv.action_space.dtype))
            writer.send(np.ascontiguousarray(venv.worlds.worlds[0].render()))


if __name__ == "__main__":
    from algos.cli import report_errors

    report_errors(lambda: main(Path(*sys.argv[1:])))
