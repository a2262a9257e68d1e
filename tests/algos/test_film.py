"""Videos of evaluations: written where a renderer and an encoder work, otherwise explained in one sentence."""

import importlib.util

import numpy as np
import pytest

from algos.film import Shot, film


def shots(folder):
    """Two episodes of three steps."""
    return {
        folder / f"{task}.mp4": [Shot("pointmaze-medium-v0", seed, np.zeros((3, 2)), task)]
        for seed, task in enumerate(("task1", "task2"))
    }


def test_without_the_encoder_a_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install -e '.[video]'" in film(shots(tmp_path / "videos"))
    assert not (tmp_path / "videos").exists()


def test_without_a_renderer_a_sentence_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setenv("MUJOCO_GL", "none-such")
    said = film(shots(tmp_path / "videos"))
    assert said.startswith("there is no video, because rendering pointmaze-medium-v0 failed here (")
    assert not (tmp_path / "videos").exists()


@pytest.mark.slow
def test_each_task_has_a_video(tmp_path):
    said = film(shots(tmp_path / "videos"))
    if said.startswith("there is no video"):
        pytest.skip(said)
    assert sorted(path.name for path in (tmp_path / "videos").iterdir()) == ["task1.mp4", "task2.mp4"]
    assert all(path.stat().st_size > 500 for path in (tmp_path / "videos").iterdir())
