"""Reading of SAC's checkpoints by the names of their tensors."""

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.recipes.checkpoint import actor_tensors, replay_rows


def test_the_layers_of_one_run_are_given_in_order(tmp_path):
    layers = [f"hidden.{i}.0" for i in range(11)] + ["out"]
    tensors = {}
    for i, layer in enumerate(layers):
        tensors[f"agent/actor.net.{layer}.weight"] = (
            torch.full((3, 2, 4), float(i)) + torch.arange(3)[:, None, None] / 10
        )
        tensors[f"agent/actor.net.{layer}.bias"] = torch.full((3, 1, 4), -float(i))
    tensors |= {"agent/critic.net.out.weight": torch.zeros(3, 2, 4), "replay/rows.1": torch.ones(5, 7)}
    save_file(tensors, tmp_path / "a.safetensors")
    actor = actor_tensors(tmp_path / "a.safetensors", 2)
    assert set(actor) == {f"{part}.{i}" for part in ("weight", "bias") for i in range(12)}
    for i in range(12):
        assert actor[f"weight.{i}"].shape == (2, 4) and actor[f"bias.{i}"].tolist() == [-i] * 4
        assert actor[f"weight.{i}"].unique().tolist() == pytest.approx([i + 0.2])
    assert replay_rows(tmp_path / "a.safetensors", 1).shape == (5, 7)


def test_another_algorithms_checkpoint_is_refused(tmp_path):
    save_file({"agent/critic.net.out.weight": torch.zeros(1, 2, 4)}, tmp_path / "a.safetensors")
    with pytest.raises(KeyError, match=r"has no tensors agent/actor.net\.\*"):
        actor_tensors(tmp_path / "a.safetensors", 0)
