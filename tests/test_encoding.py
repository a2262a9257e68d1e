"""Texts are UTF-8 whatever the locale is: reports have signs that 8-bit encodings lack."""

import ast

import pytest

from benchmarks.suite import ROOT

FILES = [path for folder in ("algos", "benchmarks", "single_file") for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_text_is_read_and_written_with_its_encoding(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("read_text", "write_text"):
            assert "encoding" in [keyword.arg for keyword in node.keywords], f"line {node.lineno}"
