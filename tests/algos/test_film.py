"""Videos of evaluations: written where a renderer and an encoder work, otherwise explained in one sentence."""

import importlib.util
import os
import signal
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

from algos.film import CAPTION, RENDERERS, SIZE, Screen, Shot, _render, captioned, encoder_problem, film
from envs.goals import goal_tasks


def shots(folder, env_id="pointmaze-medium-v0"):
    """Episodes of three steps of two tasks."""
    return {
        folder / f"{number}.mp4": [Shot(env_id, number, np.zeros((3, 2)), task)]
        for number, task in enumerate(goal_tasks(env_id)[:2])
    }


def test_without_the_encoder_a_sentence_says_what_to_install(monkeypatch, tmp_path):
    films = shots(tmp_path / "videos")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install -e '.[video]'" in film(films)
    assert not (tmp_path / "videos").exists()


def test_without_a_renderer_a_sentence_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr("algos.film.encoder_problem", lambda: "")
    monkeypatch.setenv("MUJOCO_GL", "none-such")
    said = film(shots(tmp_path / "videos"))
    assert said.startswith("there is no video, because rendering pointmaze-medium-v0 failed here (")
    assert said.endswith("needs the system's EGL (on Debian and Ubuntu libegl1) or OSMesa (libosmesa6)")
    assert not (tmp_path / "videos").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="there is one renderer elsewhere")
@pytest.mark.parametrize(
    ("works", "tried"), [("egl", ["egl"]), ("osmesa", ["egl", "osmesa"]), ("neither", ["egl", "osmesa"])]
)
def test_the_first_renderer_that_works_is_taken(monkeypatch, tmp_path, works, tried):
    asked = []

    def render(file, environment):
        asked.append(environment["MUJOCO_GL"])
        for number in range(2 if asked[-1] == works else 0):
            (file.parent / f"{number}.mp4").write_bytes(b"film")
        return "" if asked[-1] == works else f"no {asked[-1]} here"

    monkeypatch.setattr("algos.film.encoder_problem", lambda: "")
    monkeypatch.setattr("algos.film._render", render)
    for name in ("DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    films = shots(tmp_path)
    said = film(films)
    assert asked == tried and [path.exists() for path in films] == [works != "neither"] * 2
    assert said == "" if works != "neither" else "(egl: no egl here; osmesa: no osmesa here)" in said


def test_an_encoder_that_cannot_be_run_is_named(monkeypatch, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    assert encoder_problem() == ""
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/nonexistent")
    said = film(shots(tmp_path / "videos"))
    assert said.startswith(
        "there is no video, because the encoder /nonexistent, which IMAGEIO_FFMPEG_EXE names, cannot"
    )
    assert "rendering" not in said and not (tmp_path / "videos").exists()
    (tmp_path / "broken").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "broken").chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "broken"))
    assert "exit status 3" in encoder_problem()
    (tmp_path / "broken").write_text("#!/bin/sh\necho ' V..... mpeg4'\n")  # is one, but of another format
    assert encoder_problem().endswith("/broken, which IMAGEIO_FFMPEG_EXE names, does not know H.264")


def test_a_missing_package_is_told_without_advice_on_mujoco(monkeypatch, tmp_path):
    monkeypatch.setattr("algos.film.encoder_problem", lambda: "")
    tried = []
    monkeypatch.setattr("algos.film._render", lambda *_: tried.append(0) or "Error: pygame is not installed, run pip")
    said = film({tmp_path / "0.mp4": [Shot("CartPole-v1", 0, np.zeros((3, 1)))]})
    assert said == (
        "there is no video, because rendering CartPole-v1 failed here (Error: pygame is not installed, run pip)"
    )
    assert len(tried) == 1


def test_the_line_above_an_episode_begins_with_its_return_so_far(monkeypatch):
    """Of an environment that is played here too, and without a renderer."""
    actions, lines = np.zeros((5, 1)), []
    monkeypatch.setattr(Screen, "_render", lambda self: np.zeros((4, 4, 3), np.uint8))
    monkeypatch.setattr("algos.film.captioned", lambda picture, text: lines.append(text))
    screen = Screen(Shot("Pendulum-v1", 3, actions, caption="seed 0"))
    world = gym.make("Pendulum-v1")
    world.reset(seed=3)
    totals = np.cumsum([0.0, *(world.step(action)[1] for action in actions)])
    for _ in range(7):  # the last two are after the end
        screen.draw()
        screen.step()
    assert lines == [f"{total:,.0f}  seed 0" for total in [*totals, totals[-1]]]
    assert totals[-1] < -1


def test_a_return_just_below_nothing_has_no_sign(monkeypatch):
    lines = []
    monkeypatch.setattr(Screen, "_render", lambda self: np.zeros((4, 4, 3), np.uint8))
    monkeypatch.setattr("algos.film.captioned", lambda picture, text: lines.append(text))
    screen = Screen(Shot("Pendulum-v1", 3, np.zeros((5, 1)), caption="seed 0"))
    for screen.total in (-0.3, -0.7, -10.0):
        screen.draw()
    assert lines == ["0  seed 0", "-1  seed 0", "-10  seed 0"]


def test_a_long_line_above_an_episode_has_smaller_letters():
    picture = np.zeros((8, SIZE, 3), np.uint8)
    for text in ("-0  seed 2", "-1,234  median: seed 2 with discount=0.9, critic_lr=0.0001"):
        ends = captioned(picture, text)[:CAPTION].min(2) < 128
        assert ends.any() and not ends[:, -8:].any()  # its end can be read
    assert captioned(picture, "seed 0").shape == captioned(picture, 3 * text).shape


def test_an_interrupt_ends_the_process_that_renders(monkeypatch, tmp_path):
    """The process stands for one that takes long; the interrupt comes while its first line is read."""

    class Child(subprocess.Popen):
        def __init__(self, _, **options):
            super().__init__(["sh", "-c", "echo 1 2; exec sleep 60"], **options)
            children.append(self)

    def interrupt(*_):
        raise KeyboardInterrupt

    children = []
    monkeypatch.setattr("algos.film.subprocess.Popen", Child)
    monkeypatch.setattr("algos.film.tqdm.update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _render(tmp_path / "file", dict(os.environ))
    assert children[0].wait(10) == -signal.SIGKILL


def can_film() -> bool:
    """Whether there is an encoder, and MuJoCo can render, which chooses its renderer when it is imported."""
    render = "import mujoco; mujoco.Renderer(mujoco.MjModel.from_xml_string('<mujoco/>')).render()"
    chosen = [{}] if "MUJOCO_GL" in os.environ else [{}, *({"MUJOCO_GL": name} for name in RENDERERS)]
    tries = (
        subprocess.run([sys.executable, "-c", render], env=os.environ | one, capture_output=True) for one in chosen
    )
    return not encoder_problem() and any(done.returncode == 0 for done in tries)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["pointmaze-medium-v0", "PointMaze_UMaze-v3"])
def test_each_task_has_a_video(tmp_path, env_id):
    said = film(shots(tmp_path / "videos", env_id))
    if said and not can_film():
        pytest.skip(said)
    assert not said
    assert sorted(path.name for path in (tmp_path / "videos").iterdir()) == ["0.mp4", "1.mp4"]
    assert all(path.stat().st_size > 500 for path in (tmp_path / "videos").iterdir())
