"""Offline datasets: one record for all formats, found by name.

| name | what it is |
|---|---|
| `d4rl/hopper-medium-v2` | D4RL's HDF5 file, in $D4RL_DATASET_DIR or ~/.d4rl/datasets; downloaded if missing |
| `minari/mujoco/hopper/medium-v0` | Minari's, in $MINARI_DATASETS_PATH or ~/.minari/datasets; downloaded if missing |
| `ogbench/pointmaze-medium-navigate-v0` | an npz, in $OGBENCH_DATASET_DIR or ~/.ogbench/data; downloaded if missing |
| `local/hopper-medium-v0` | made by `python -m benchmarks.collect`, stored as a Minari dataset |
| `data/mine.hdf5`, `data/mine.npz` | a file with D4RL's keys; an npz without `timeouts` may also have OGBench's |

A file that has the name of one of D4RL's files is taken for it: `data/hopper_medium-v2.hdf5` is
`d4rl/hopper-medium-v2`.
"""

from algos.data.check import action_box, validate
from algos.data.files import is_file
from algos.data.minari import minari_in, recipe_of
from algos.data.names import check_made, check_name, load
from algos.data.record import Dataset

__all__ = ["Dataset", "action_box", "check_made", "check_name", "is_file", "load", "minari_in", "recipe_of", "validate"]
