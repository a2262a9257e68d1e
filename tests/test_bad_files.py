"""Data, tables and learners from elsewhere: any file is refused in one sentence or right, and no pickle is loaded."""

import contextlib
import io
import itertools
import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from dataset_files import d4rl_arrays, hdf5, in_minari, npz, trajectories
from safetensors.torch import load_file, save_file
from scripts import agent_of, agent_type

from algos.data import load, validate
from algos.errors import UserError
from algos.learner import Learner, learner_file
from envs.tabular import load_table, save_table
from envs.tabular.tasks import table_of

pytestmark = pytest.mark.filterwarnings("ignore")  # Minari's, about authors and links


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The working directory, in which nothing may be left."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "work" / "minari"))


def arrays(**changed: Any) -> dict[str, Any]:
    """The arrays of a small file of D4RL's layout; those that are None are left out."""
    good = d4rl_arrays(trajectories(5, 4, 6)) | changed
    return {key: value for key, value in good.items() if value is not None}


def refusal(read: Callable[[], Any], kind: type[Exception] = UserError) -> str:
    """The sentence by which a file is refused; no file is written."""
    before = set(Path().rglob("*"))
    with pytest.raises(kind) as refused:
        read()
    said = str(refused.value)
    assert len(said.splitlines()) == 1 and len(said) < 1_200 and set(Path().rglob("*")) == before
    return said


def both(name: str) -> Any:
    """Loads and checks a dataset."""
    data = load(name)
    validate(data)
    return data


# -- HDF5 --------------------------------------------------------------------------------------------------------------

ROWS = 10**9


def vast(file: h5py.File, rows: int = ROWS, **how: Any) -> None:
    for key, shape in (("observations", (rows, 17)), ("actions", (rows, 6)), ("rewards", (rows,))):
        file.create_dataset(key, shape, np.float32, **how)
    for key in ("terminals", "timeouts"):
        file.create_dataset(key, (rows,), bool, **how)


def replaced(key: str, make: Callable[[h5py.File], Any]) -> Callable[[h5py.File], None]:
    """A good file in which something else stands for an array."""

    def write(file: h5py.File) -> None:
        for name, array in arrays(**{key: None}).items():
            file[name] = array
        if (new := make(file)) is not None:
            file[key] = new

    return write


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((15, 3), np.float32)
    layout[:] = h5py.VirtualSource("other.hdf5", "observations", (15, 3))
    file.create_virtual_dataset("observations", layout)


HDF5 = {
    "a billion rows in chunks that are not there": lambda f: vast(f, chunks=True),
    "a billion compressed rows that are not there": lambda f: vast(f, compression="gzip"),
    "a billion rows without chunks": lambda f: vast(f),
    "a trillion rows": lambda f: vast(f, 10**12, chunks=True),
    "one chunk of gigabytes": replaced(
        "observations",
        lambda f: (
            f.create_dataset("observations", (15, 3), np.float32, chunks=(10**9, 1), maxshape=(None, None)) and None
        ),
    ),
    "many columns": replaced(
        "actions", lambda f: f.create_dataset("actions", (15, 10**9), "f4", chunks=(1, 1000)) and None
    ),
    "an external link": replaced("observations", lambda f: h5py.ExternalLink("other.hdf5", "observations")),
    "an external link to nothing": replaced("observations", lambda f: h5py.ExternalLink("nowhere.hdf5", "x")),
    "an external link to itself": replaced("observations", lambda f: h5py.ExternalLink("bad.hdf5", "observations")),
    "a soft link to itself": replaced("observations", lambda f: h5py.SoftLink("/observations")),
    "soft links in a loop": replaced(
        "observations",
        lambda f: (
            [f.__setitem__("a", h5py.SoftLink("/b")), f.__setitem__("b", h5py.SoftLink("/a"))] and h5py.SoftLink("/a")
        ),
    ),
    "a soft link to nothing": replaced("actions", lambda f: h5py.SoftLink("/nowhere")),
    "numbers in another file": replaced(
        "observations",
        lambda f: f.create_dataset("observations", (15, 3), "f4", external=[("other.hdf5", 0, 180)]) and None,
    ),
    "a virtual array": replaced("observations", virtual),
    "a group": replaced("actions", lambda f: f.create_group("actions") and None),
    "a type": replaced("actions", lambda f: np.dtype("f4")),
    "an empty array": replaced("observations", lambda f: h5py.Empty("f4")),
    "a number": replaced("observations", lambda f: np.float32(1)),
    "words": replaced("observations", lambda f: np.array([[b"a"] * 3] * 15)),
    "words of any length": replaced("rewards", lambda f: ["a"] * 15),
    "complex numbers": replaced("observations", lambda f: np.ones((15, 3), complex)),
    "compound numbers": replaced("observations", lambda f: np.zeros((15, 3), [("a", "f4")])),
    "references": replaced(
        "observations", lambda f: f.create_dataset("observations", (15, 3), h5py.ref_dtype) and None
    ),
    "four axes": replaced("observations", lambda f: np.ones((15, 1, 1, 3))),
    "no columns": replaced("actions", lambda f: np.ones((15, 0), np.float32)),
    "no observations": replaced("observations", lambda f: np.ones((15, 0), np.float32)),
    "numbers beyond float32": replaced("observations", lambda f: np.full((15, 3), 1e300)),
    "integers that are no flags": replaced("terminals", lambda f: np.arange(15)),
    "flags of NaN": replaced("timeouts", lambda f: np.full(15, np.nan)),
    "rows of NaN": replaced("next_observations", lambda f: np.full((15, 3), np.nan, np.float32)),
    "one row": lambda f: [f.__setitem__(k, v[:1]) for k, v in arrays(next_observations=None).items()],
    "nothing": lambda f: None,
}


@pytest.mark.parametrize("name", HDF5)
def test_a_file_of_hdf5_is_refused(name):
    hdf5(Path("other.hdf5"), arrays())
    with h5py.File("bad.hdf5", "w") as file:
        HDF5[name](file)
    assert Path("bad.hdf5").stat().st_size < 100_000
    said = refusal(lambda: both("bad.hdf5"))
    assert said.startswith("--dataset") and "bad.hdf5" in said


def test_arrays_that_were_made_and_never_written_hold_their_default():
    with h5py.File("good.hdf5", "w") as file:
        for key, array in arrays(terminals=None).items():
            file[key] = np.tile(array, (200_000, *[1] * (array.ndim - 1)))
        file.create_dataset("terminals", (3_000_000,), bool)
    assert len(both("good.hdf5")) > 1_000_000


def test_rows_that_do_not_fit_into_memory_are_refused(monkeypatch):
    hdf5(Path("good.hdf5"), arrays())
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 100}))
    assert "15 rows, which take 0.0 GiB of memory, where 0.0 GiB are free" in refusal(lambda: both("good.hdf5"))


@pytest.mark.parametrize("suffix", ["hdf5", "h5", "npz"])
def test_what_is_no_file_is_refused(suffix):
    Path(f"folder.{suffix}").mkdir()
    Path(f"loop.{suffix}").symlink_to(f"loop.{suffix}")
    Path(f"empty.{suffix}").touch()
    for name in ("folder", "loop", "missing", "x" * 400, "a\0b", "empty"):
        assert refusal(lambda name=name: both(f"{name}.{suffix}")).startswith("--dataset")


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
def test_every_changed_byte_is_seen_or_changes_numbers_only(suffix):
    path = Path({"hdf5": hdf5, "npz": npz}[suffix](Path(f"file.{suffix}"), arrays()))
    whole, data = path.read_bytes(), both(str(path))
    sizes = len(data), data.obs_size, data.act_size, data.rows.shape[1]
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(whole), 60):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) * 8 + whole[at + 8 :])
        with contextlib.suppress(UserError):
            data = both(str(path))
            assert data.rows.isfinite().all()
            # the number of stored rows is not compared: each new end of a trajectory adds one
            assert (len(data), data.obs_size, data.act_size, data.rows.shape[1]) == sizes


# -- npz ---------------------------------------------------------------------------------------------------------------


class Harmful:
    """Makes a file where its pickle is loaded."""

    def __reduce__(self):
        return Path("ran").touch, ()


def header(shape: Any, descr: Any = "<f4", order: bool = False) -> bytes:
    """The beginning of a file of NumPy's."""
    text = repr({"descr": descr, "fortran_order": order, "shape": shape}).encode()
    text += b" " * (63 - (len(text) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


NPY = {
    "a billion rows": header((ROWS, 3)),
    "a negative length": header((-15, 3)),
    "two negative lengths": header((-15, -3)),
    "a length of 2^70": header((2**70, 3)),
    "a length that is no number": header(("x", 3)),
    "no shape": header(None),
    "a shape of numbers": header(15),
    "an unknown type": header((15, 3), "<x9"),
    "a pickled type": header((15, 3), "|O"),
    "a type with fields": header((15, 3), [("a", "<f4")]),
    "another order of bytes": header((15, 3), ">f4"),
    "columns": header((15, 3), order=True),
    "too few numbers": header((15, 3)) + b"\0" * 100,
    "too many numbers": header((15, 3)) + b"\0" * 200,
    "no header": b"",
    "text": b"observations",
    "half a header": header((15, 3))[:30],
    "a header that lies": b"\x93NUMPY\x01\x00\xff\xff{",
    "a version of the future": b"\x93NUMPY\x09\x00" + header((15, 3))[8:],
    "code": b"\x93NUMPY\x01\x00\x20\x00" + b"__import__('os').mkdir('ran')   \n",
    "a deep header": b"\x93NUMPY\x01\x00" + struct.pack("<H", 9_000) + b"(" * 9_000,
    "a pickle": b"\x80\x04N.",
    "a type of words": header((15, 3), "<U1") + b"\0" * 180,
    "dates": header((15, 3), "<M8[s]") + b"\0" * 360,
}


@pytest.mark.parametrize("name", NPY)
@pytest.mark.parametrize("key", ["observations", "terminals"])
def test_a_file_of_npz_is_refused(name, key):
    with zipfile.ZipFile("bad.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for other, array in arrays().items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            archive.writestr(f"{other}.npy", NPY[name] if other == key else buffer.getvalue())
    assert refusal(lambda: both("bad.npz")).startswith("--dataset") and not Path("ran").exists()
    said = refusal(lambda: load_table(Path("bad.npz")), ValueError)
    assert said.startswith("bad.npz ") and not Path("ran").exists()


@pytest.mark.parametrize("damage", ["encrypted", "method", "bomb", "twice", "tar"])
def test_archives_of_other_kinds_are_refused(damage):
    npz(Path("bad.npz"), arrays())
    whole = Path("bad.npz").read_bytes()
    if damage == "encrypted":
        at = whole.rindex(b"PK\x01\x02")
        whole = whole[: at + 8] + b"\x01" + whole[at + 9 :]
        whole = whole.replace(b"PK\x01\x02\x14\x03\x2d\0\0", b"PK\x01\x02\x14\x03\x2d\0\1")
    elif damage == "method":
        whole = whole.replace(b"PK\x01\x02", b"PK\x01\x02\x14\x03\x14\0\0\0\x63\0")
    elif damage == "bomb":
        with zipfile.ZipFile("bad.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("observations.npy", header((2 * 10**6, 100)) + b"\0" * 10**6)
        whole = Path("bad.npz").read_bytes()
    elif damage == "twice":
        whole = whole[: len(whole) // 2] + whole
        whole = whole[:-100]
    else:
        whole = b"\0" * 257 + b"ustar" + whole[:300]
    Path("bad.npz").write_bytes(whole)
    assert refusal(lambda: both("bad.npz")).startswith("--dataset")


# -- Minari ------------------------------------------------------------------------------------------------------------

METADATA = {
    "total_steps": [None, "x", -1, 0, 3, 10**13, 1.5, [], {}],
    "total_episodes": [None, "x", -1, 0, 10**12, []],
    "observation_space": [None, 3, "x", {}, "{}", '{"type": "Box"}', '{"type": "Nothing"}'],
    "action_space": [None, 3, '{"type": "Discrete", "n": 2, "dtype": "int64", "start": 0}', "[]"],
    "data_format": [None, 3, "pickle", "../x"],
    "ref_min_score": ["x", float("nan"), float("inf"), [1], {}],
    "ref_max_score": ["x", [], float("-inf")],
    "env_spec": ["x", 3, "{}", "[" * 5_000],
    "minari_version": [3, "x", "99.0"],
    "dataset_id": [3, None],
}


@pytest.fixture(scope="module")
def minari(tmp_path_factory):
    """The folder of a good Minari dataset."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder := tmp_path_factory.mktemp("minari")))
        in_minari("test/good-v0", trajectories(5, 4))
    return folder


@pytest.mark.parametrize("key", METADATA)
def test_metadata_of_minari_is_refused_or_means_the_same(key, minari):
    shutil.copytree(minari, "minari")
    path = Path("minari/test/good-v0/data/metadata.json")
    good = json.loads(path.read_text())
    accepted = 0
    for value in (..., *METADATA[key]):
        path.write_text(json.dumps({k: v for k, v in (good | {key: value}).items() if v is not ...}))
        with contextlib.suppress(UserError):
            data = both("minari/test/good-v0")
            assert len(data) == 9 and data.rows.isfinite().all() and isinstance(data.score(1.0), float)
            accepted += 1
    assert accepted <= len(METADATA[key]) or key in ("total_episodes", "minari_version", "dataset_id")


MINARI = {
    "no metadata": lambda p: (p / "metadata.json").unlink(),
    "text as metadata": lambda p: (p / "metadata.json").write_text("{"),
    "a list as metadata": lambda p: (p / "metadata.json").write_text("[]"),
    "deep metadata": lambda p: (p / "metadata.json").write_text("[" * 100_000),
    "bytes as metadata": lambda p: (p / "metadata.json").write_bytes(b"\xff\xfe\0"),
    "a folder as metadata": lambda p: [(p / "metadata.json").unlink(), (p / "metadata.json").mkdir()],
    "no data": lambda p: shutil.rmtree(p),
    "a file instead": lambda p: [shutil.rmtree(p), p.write_text("x")],
    "no rewards": lambda p: changed(p, "rewards", None),
    "rewards of words": lambda p: changed(p, "rewards", ["a"] * 5),
    "fewer rewards": lambda p: changed(p, "rewards", np.ones(3)),
    "rewards of NaN": lambda p: changed(p, "rewards", np.full(5, np.nan)),
    "other observations": lambda p: changed(p, "observations", np.ones((6, 7), np.float32)),
    "too few observations": lambda p: changed(p, "observations", np.ones((2, 3), np.float32)),
    "observations of words": lambda p: changed(p, "observations", [["a"] * 3] * 6),
    "other actions": lambda p: changed(p, "actions", np.ones((5, 9), np.float32)),
    "flags of another length": lambda p: changed(p, "terminations", np.ones(99, bool)),
    "a link to another file": lambda p: changed(p, "observations", h5py.ExternalLink("/tmp/nothing.hdf5", "x")),
    "a link to itself": lambda p: changed(p, "observations", h5py.SoftLink("/episode_0/observations")),
    "a billion rewards": lambda p: changed(p, "rewards", ROWS),
    "a group of rewards": lambda p: changed(p, "rewards/x", np.ones(3)),
}


def changed(folder: Path, key: str, value: Any) -> None:
    """Replaces an array of the first episode."""
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_0"][key.partition("/")[0]]
        if isinstance(value, int):
            file["episode_0"].create_dataset(key, (value,), np.float64, chunks=True)
        elif value is not None:
            file["episode_0"][key] = value


@pytest.mark.parametrize("name", MINARI)
def test_a_dataset_of_minari_is_refused(name, minari):
    shutil.copytree(minari, "minari")
    MINARI[name](Path("minari/test/good-v0/data"))
    assert refusal(lambda: both("minari/test/good-v0")).startswith("--dataset minari/test/good-v0")


# -- tables ------------------------------------------------------------------------------------------------------------

FACTS = {
    "name": [3, None, []],
    "horizon": [None, "5", 0, -1, 2.5, 10**30, True, [], 10_001],
    "sticky": ["x", 1, -0.5, None],
    "versions": [3, "x", []],
    "digest": [3, "0", None],
    "more": [1],
}
TABLE = {
    "next_state": [
        np.zeros((4, 2, 1)),
        np.zeros((4, 2, 1), bool),
        np.full((4, 2, 1), 9),
        np.zeros(3, int),
        np.array("x"),
    ],
    "probability": [np.ones((4, 2, 1), complex), np.full((4, 2, 1), np.nan), np.array(["x"]), np.ones((4, 2))],
    "reward": [np.full((4, 2, 1), np.inf), np.full((4, 2, 1), "x"), np.array(1.0)],
    "start": [np.ones(4), np.array(["x"] * 4), np.zeros((4, 4)), np.full(4, -1)],
    "obs": [np.full((4, 2), "x"), np.ones(4), np.ones((3, 4)), np.full((4, 4), np.nan)],
    "facts": [
        np.array("["),
        np.array("[" * 20_000),
        np.array("[]"),
        np.array("3"),
        np.array(3.0),
        np.array("\0"),
        np.array(["{}"] * 2),
    ],
}


@pytest.mark.parametrize("key", [*TABLE, *(f"facts.{key}" for key in FACTS)])
def test_a_table_is_refused(key):
    save_table(table_of("chain"), Path("good.npz"))
    with np.load("good.npz") as file:
        good = dict(file)
    facts = json.loads(str(good["facts"]))
    for value in TABLE[key] if key in TABLE else FACTS[key.removeprefix("facts.")]:
        if key in TABLE:
            np.savez("bad.npz", **{**good, key: value})
        else:
            new = facts | {key.removeprefix("facts."): value}
            np.savez("bad.npz", **{**good, "facts": np.array(json.dumps(new))})
        said = refusal(lambda: load_table(Path("bad.npz")), ValueError)
        assert said.startswith("bad.npz has "), said


def test_pickles_in_tables_are_not_loaded():
    np.savez("bad.npz", transitions=np.array([Harmful()], object), rewards=np.zeros((1, 1)))
    assert refusal(lambda: load_table(Path("bad.npz"), 5), ValueError).startswith("bad.npz is no .npz file of arrays")
    assert not Path("ran").exists()


# -- learners ----------------------------------------------------------------------------------------------------------

LEARNER = {
    "algorithm": [None, 3, "x", [], "StreamQ"],
    "runs": [
        None,
        3,
        [],
        [3],
        {},
        [{}],
        [{"seed": "x"}],
        [{"seed": -1}],
        [{"seed": 1.5}],
        [{"seed": True}],
        [{"seed": []}],
        [{"seed": 2**70}],
        [{"seed": 1}, {"seed": 2}, {"seed": 1}],
        [{"seed": 1, "nothing": 2}],
        "x" * 5_000,
    ],
    "task": [None, 3, [], {}, "x"],
    "args": [None, 3, [], "x"],
    "task.obs_shape": [None, 3, "x", [], [-7], [7.5], [10**9], [0], ["7"], [7, 10**6], [8]],
    "task.act_size": [None, "x", -1, 0, 10**9, 1.5, [2]],
    "task.discrete": [None, 3, "x", True],
    "task.low": [None, 3, "x", [1], [None], [[0, 0]]],
    "task.nothing": [1],
    "args.hidden": [None, 3, "x", [10**6, 10**6], [-1], [0], [1.5], [8] * 500, ["8"], [[8]], [8, 8, 8]],
    "args.discount": [None, "x", 2.0, -1, [0.9], {}, 10**400],
    "args.total_steps": [None, "x", -1, 1.5, 2**70],
    "args.nothing": [1],
}


@pytest.fixture(scope="module")
def learner(tmp_path_factory):
    """The file of a learner of one run, its tensors and its metadata."""
    path = tmp_path_factory.mktemp("learner") / "good.safetensors"
    path.write_bytes(learner_file(agent_of("stream_ac", seeds=(1,))))
    size = struct.unpack("<Q", path.read_bytes()[:8])[0]
    return path, load_file(path), json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"]


def loaded(**how: Any) -> Learner:
    return Learner.load("bad.safetensors", agent_type("stream_ac"), seed=1, **how)


@pytest.mark.parametrize("key", LEARNER)
def test_metadata_of_a_learner_is_refused(key, learner):
    _, tensors, metadata = learner
    part, _, name = key.partition(".")
    for value in LEARNER[key]:
        new = json.loads(metadata[part]) | {name: value} if name else value
        save_file(tensors, "bad.safetensors", {**metadata, part: json.dumps(new)})
        assert "bad.safetensors" in refusal(loaded), value
    for text in ("", "{", "[" * 50_000, "NaN", "\0"):
        save_file(tensors, "bad.safetensors", {**metadata, part: text})
        assert refusal(loaded).startswith("bad.safetensors "), text
    save_file(tensors, "bad.safetensors", {k: v for k, v in metadata.items() if k != part})
    assert refusal(loaded).startswith("bad.safetensors is no streaming learner's file")


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "missing": lambda t: None,
    "float64 instead": lambda t: t.double() if t.dtype != torch.float64 else t.float(),
    "whole numbers": lambda t: t.to(torch.int16),
    "truth": lambda t: t > 0,
    "of another shape": lambda t: t[..., None],
    "empty": lambda t: t[:0],
    "one number": lambda t: t.flatten()[0].clone(),
    "NaN": lambda t: t.double() * torch.nan,
}


@pytest.mark.parametrize("change", CHANGES)
def test_tensors_of_a_learner_are_refused(change, learner):
    _, tensors, metadata = learner
    for name, tensor in tensors.items():
        new = CHANGES[change](tensor) if tensor.numel() else None
        save_file(
            {**{k: v for k, v in tensors.items() if k != name}, **({} if new is None else {name: new})},
            "bad.safetensors",
            metadata,
        )
        assert "bad.safetensors" in refusal(loaded), name
    save_file({**tensors, "nothing": torch.ones(1)}, "bad.safetensors", metadata)
    assert "bad.safetensors is no streaming learner's file" in refusal(loaded)


def test_bytes_that_are_no_learner_are_refused(learner):
    whole = learner[0].read_bytes()
    torch.save({"runs": Harmful()}, "pickle")
    contents = [b"", b"x", whole[:7], whole[:100], whole[:-1], b"\xff" * 100, struct.pack("<Q", 2**62) + whole[8:]]
    contents += [struct.pack("<Q", 0) + whole[8:], Path("pickle").read_bytes(), b"\x80\x04N."]
    for content in contents:
        Path("bad.safetensors").write_bytes(content)
        assert refusal(loaded).startswith("bad.safetensors is no streaming learner's file")
    Path("bad.safetensors").unlink()
    Path("bad.safetensors").mkdir()
    assert "bad.safetensors" in refusal(loaded) and not Path("ran").exists()
    for path in ("x" * 400, "a\0b", "nothing"):
        refusal(lambda path=path: Learner.load(path, agent_type("stream_ac")))


def test_the_file_that_the_others_damage_is_right(learner):
    shutil.copy(learner[0], "bad.safetensors")
    assert loaded().agent.seeds == [1]
    assert len(list(itertools.chain(HDF5, NPY, MINARI, LEARNER))) > 50
