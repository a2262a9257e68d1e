"""Films episodes, where a renderer and an encoder work: one beside the other, with what is said above each.

MuJoCo chooses its renderer when it is imported, so that a process of its own plays the episodes again, from their seeds
and actions: `python -m algos.film FILE`.
"""

import contextlib
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from tqdm import tqdm

from algos.checkpoint import written_aside
from algos.errors import UserError, describe

SIZE = 256  # pixels of each edge of an episode's picture
CAPTION = 22  # pixels of the line above it
LETTERS = range(14, 7, -1)  # heights of its letters in pixels: the largest with which it fits are taken
FASTEST = 30  # frames per second
# software rendering, where the system has it; a name that is set already is the only one that is tried
RENDERERS = ("egl", "osmesa")


@dataclass
class Shot:
    """One episode: its environment, the seed of its reset, and its actions [T, A]."""

    env_id: str
    seed: int
    actions: NDArray
    task: str = ""  # where the environment has goals
    options: dict[str, Any] = field(default_factory=dict)
    caption: str = ""  # the return so far comes before it; empty: there is no line above the picture


def encoder_problem() -> str:
    """A sentence that says why no video can be encoded here; empty if one can."""
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        return "there is no video, because the package imageio-ffmpeg is missing: pip install -e '.[video]'"
    import imageio_ffmpeg

    try:
        encoder = imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        return f"there is no video, because imageio-ffmpeg has no encoder here ({describe(error)})"
    chosen = ", which IMAGEIO_FFMPEG_EXE names," if os.environ.get("IMAGEIO_FFMPEG_EXE") else ""
    try:
        listing = subprocess.run([encoder, "-encoders"], capture_output=True, check=True, text=True).stdout
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        return f"there is no video, because the encoder {encoder}{chosen} cannot be run ({describe(error)})"
    if "264" not in listing:
        return f"there is no video, because the encoder {encoder}{chosen} does not know H.264"
    return ""


def film(films: Mapping[Path, Sequence[Shot]], every: int = 0, fps: int = 0, seconds: float = math.inf) -> str:
    """Writes a video for each path, with its episodes side by side; gives an empty string, or a sentence why not.

    There is a frame for each `every` steps, `fps` of them are shown in a second, and a video ends after that many
    seconds. By default, an episode is as fast as in the world, with at most 30 frames in a second.
    """
    if reason := encoder_problem():
        return reason
    root = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    display = ("",) if "DISPLAY" in os.environ else ()  # which may be one that is gone
    fixed = "MUJOCO_GL" in os.environ or sys.platform != "linux"  # elsewhere there is one renderer, MuJoCo's default
    renderers = ("",) if fixed else (*display, *RENDERERS)
    reasons: list[str] = []
    with tempfile.TemporaryDirectory() as aside:
        file = Path(aside) / "episodes.npz"
        shots = [shot for shots in films.values() for shot in shots]
        if not sys.stderr.isatty():  # on a terminal, there is a bar
            print(f"filming {len(shots)} episode{'s' * (len(shots) > 1)}", flush=True)
        plan = {"films": [len(shots) for shots in films.values()], "every": every, "fps": fps, "seconds": seconds}
        plan["shots"] = [{k: v for k, v in asdict(shot).items() if k != "actions"} for shot in shots]
        actions: dict[str, Any] = {f"actions_{i}": shot.actions for i, shot in enumerate(shots)}
        np.savez(file, plan=json.dumps(plan), **actions)
        for renderer in renderers:
            own = {"MUJOCO_GL": renderer} if renderer else {}
            if not (reason := _render(file, environment | own)):
                for number, path in enumerate(films):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with written_aside(path) as part:
                        shutil.copyfile(Path(aside) / f"{number}.mp4", part)  # which may lie on another disk
                return ""
            if "is not installed" in reason:  # a package that no renderer replaces
                return f"there is no video, because rendering {shots[0].env_id} failed here ({reason})"
            reasons.append(f"{renderer}: {reason}" if renderer else reason)
    return (
        f"there is no video, because rendering {shots[0].env_id} failed here ({'; '.join(dict.fromkeys(reasons))}): "
        "without a display, MuJoCo needs the system's EGL (on Debian and Ubuntu libegl1) or OSMesa (libosmesa6)"
    )


def _render(file: Path, environment: dict[str, str]) -> str:
    """Renders the episodes in a file in a process of its own; gives the reason why that failed."""
    command = [sys.executable, "-m", "algos.film", str(file)]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as child,
        tqdm(unit=" frames", disable=not sys.stderr.isatty(), leave=False) as progress,
    ):
        assert child.stdout
        try:
            for line in child.stdout:  # frames done, and their number
                done, _, total = line.partition(" ")
                if total.strip().isdecimal() and done.isdecimal():
                    progress.total = int(total)
                    progress.update(int(done) - progress.n)
        except KeyboardInterrupt:
            child.kill()
            raise
        if not child.wait():
            return ""
        errors.seek(0)
        said = [line for line in errors.read().splitlines() if line.strip()]
        return said[-1].strip() if said else "no reason is known"


# -- the process that renders ------------------------------------------------------------------------------------------


class Screen:
    """An environment that plays an episode again, and its picture."""

    def __init__(self, shot: Shot):
        from envs.goals import is_own, make_goal_vec
        from envs.make import is_batched, make_vec

        self.shot, self.step_number, self.total = shot, 0, 0.0
        self.venv: Any
        size: dict[str, Any] = {"width": SIZE, "height": SIZE}
        options = shot.options | {"render_mode": "rgb_array"}
        sized = not is_own(shot.env_id) if shot.task else is_batched(shot.env_id)
        options |= size if sized else {}
        if shot.task:  # a world for each task, because the marks of goals belong to the model
            self.venv = make_goal_vec(shot.env_id, [shot.task], **options)
            worlds = self.venv.worlds
            self.world: Any = worlds.worlds[0] if hasattr(worlds, "worlds") else worlds
        else:
            self.venv = make_vec(shot.env_id, 1, AutoresetMode.DISABLED, **options)
            self.world = self.venv.unwrapped.envs[0]
            if not {"camera_id", "camera_name"} & set(shot.options):
                follow(self.world.unwrapped)
        self.rate = self.world.metadata.get("render_fps", FASTEST)
        self.venv.reset(seed=[shot.seed])
        self.picture, self.drawn = self._render(), 0

    def step(self) -> None:
        """Plays the next step, if the episode has not ended."""
        if self.step_number < len(self.shot.actions):
            action = self.shot.actions[self.step_number].astype(self.venv.action_space.dtype)
            _, reward, *_ = self.venv.step(action.reshape(self.venv.action_space.shape))
            self.step_number += 1
            self.total += float(reward[0])

    def draw(self) -> NDArray:
        """The picture [H, W, 3] at this step, with its caption."""
        if self.step_number > self.drawn:
            self.picture, self.drawn = self._render(), self.step_number
        if not self.shot.caption:
            return self.picture
        total = f"{self.total:,.0f}".replace("-0", "0")  # a return that is rounded to 0 has no sign
        return captioned(self.picture, f"{total}  {self.shot.caption}")

    def _render(self) -> NDArray:
        from PIL import Image

        image = Image.fromarray(np.asarray(self.world.render(), np.uint8))
        if image.size == (SIZE, SIZE):
            return np.asarray(image)
        image.thumbnail((SIZE, SIZE))  # which never enlarges
        whole = Image.new("RGB", (SIZE, SIZE), "white")
        whole.paste(image, ((SIZE - image.width) // 2, (SIZE - image.height) // 2))
        return np.asarray(whole)


def follow(world: Any) -> None:
    """Makes the camera of one of MuJoCo's tasks go along, where its model has such a camera: by default, none does."""
    if hasattr(world, "mujoco_renderer"):
        import mujoco

        number = mujoco.mj_name2id(world.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
        world.mujoco_renderer.camera_id = number


def captioned(picture: NDArray, text: str) -> NDArray:
    """A picture with a line of text above it, in smaller letters if it is long."""
    from PIL import Image, ImageDraw, ImageFont

    line = Image.new("RGB", (picture.shape[1], CAPTION), "white")
    fonts = [ImageFont.load_default(size) for size in LETTERS]
    font = next((font for font in fonts if font.getlength(text) <= line.width - 12), fonts[-1])
    ImageDraw.Draw(line).text((6, CAPTION // 2), text, fill="black", font=font, anchor="lm")
    whole = np.concatenate([np.asarray(line), picture])
    whole[:, -2:] = 255  # the edge to the next one
    return whole


def main(file: Path) -> None:
    """Plays the episodes in a file, and writes their videos beside it."""
    try:
        with np.load(file) as stored:
            plan = json.loads(str(stored["plan"]))
            shots = [Shot(**shot, actions=stored[f"actions_{i}"]) for i, shot in enumerate(plan["shots"])]
            counts, every, fps, seconds = (plan[name] for name in ("films", "every", "fps", "seconds"))
    except (OSError, LookupError, ValueError, TypeError, EOFError, BadZipFile) as error:
        raise UserError(f"{file} holds no episodes that `film` wrote ({describe(error)})") from None
    import imageio_ffmpeg

    for number, count in enumerate(counts):
        with contextlib.ExitStack() as stack:
            screens = [Screen(shot) for shot in shots[:count]]
            shots = shots[count:]
            for screen in screens:
                stack.callback(screen.venv.close)
            each = every or max(1, math.ceil(screens[0].rate / FASTEST))
            rate = fps or screens[0].rate / each
            steps = max(len(screen.shot.actions) for screen in screens)
            frames = max(1, int(min(-(-steps // each) + 1, seconds * rate)))
            first = np.concatenate([screen.draw() for screen in screens], 1)
            size = (first.shape[1], first.shape[0])
            path = str(file.with_name(f"{number}.mp4"))
            writer = imageio_ffmpeg.write_frames(path, size, fps=rate, macro_block_size=2)
            writer.send(None)
            stack.enter_context(contextlib.closing(writer))
            for frame in range(frames):
                writer.send(np.ascontiguousarray(np.concatenate([screen.draw() for screen in screens], 1)))
                for _ in range(each):
                    for screen in screens:
                        screen.step()
                print(frame + 1, frames, flush=True)


if __name__ == "__main__":
    from algos.cli import report_errors

    report_errors(lambda: main(Path(*sys.argv[1:])))
