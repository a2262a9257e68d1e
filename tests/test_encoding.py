"""Texts are UTF-8 whatever the locale is: reports have signs that 8-bit encodings lack."""

import ast

import pytest

from benchmarks.suite import ROOT

FOLDERS = ("algos", "benchmarks", "envs", "single_file")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def is_text(call: ast.Call) -> bool:
    """Whether a call reads or writes a text, as `open(file, mode)` and `path.open(mode)` do without `b` in the mode."""
    name = getattr(call.func, "attr", "")
    if name in ("read_text", "write_text"):
        return True
    if name == "open":
        mode = call.args
        if not all(isinstance(word, ast.Constant) and set(str(word.value)) <= set("rwaxbt+") for word in mode):
            return False  # of a module or an archive, whose first argument is a file
    elif getattr(call.func, "id", "") == "open":
        mode = call.args[1:2]
    else:
        return False
    mode = [*mode, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    words = [node.value for part in mode for node in ast.walk(part) if isinstance(node, ast.Constant)]
    return not any("b" in str(word) for word in words)


def bare(source: str) -> list[int]:
    """The lines of calls that read or write a text without naming its encoding."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and is_text(node)]
    return [call.lineno for call in calls if "encoding" not in [keyword.arg for keyword in call.keywords]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_text_is_read_and_written_with_its_encoding(path):
    assert bare(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "call", ["path.read_text()", "open(path)", "open(path, mode='w')", "path.open()", "path.open('a')"]
)
def test_a_text_without_an_encoding_is_seen(call):
    assert bare(f"x = 1\n{call}") == [2] and bare(f"{call[:-1]}, encoding='utf-8')".replace("(, ", "(")) == []


@pytest.mark.parametrize("call", ["open(path, 'rb')", "open(path, 'ab' if have else 'wb')", "path.open(mode='rb')"])
def test_bytes_have_no_encoding(call):
    assert bare(call) == bare("os.open(os.devnull, os.O_WRONLY)") == bare("archive.open(f'{key}.npy')") == []
