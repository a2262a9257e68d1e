"""The form in which --help shows arguments."""

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Callable, Literal, get_type_hints  # noqa: UP035  that of typing has lists

import docstring_parser
import pytest
import tyro

from algos.arguments import Range
from algos.help_text import readable_help


@dataclass
class Base:
    names: tuple[str, ...] = ()
    """names that are
    many"""
    folder: Path | None = None
    """a folder"""


@dataclass
class Args(Base):
    words: tyro.conf.Positional[tuple[str, ...]] = ()
    """words"""
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = Path("runs")
    """a run"""
    widths: Annotated[tuple[int, ...], Range(1)] = (8, 6)
    """widths"""
    formats: tuple[Literal["png", "pdf"], ...] = ("png",)
    """files"""
    step: Annotated[int, Range(0)] | None = None
    """a step"""
    three: tuple[float, float, float] = (0.0, 0.0, 1.0)
    """three numbers"""
    title: str = ""
    """a title"""
    place: str = "here"
    """a place"""
    own: Annotated[str, tyro.conf.arg(metavar="NAME", help_behavior_hint="(mine)")] = "x"
    """a form of its own"""
    known: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """given again and again"""
    either: int | str | None = None
    """a number or a word"""
    off: float | None = 0.5
    """a number that may be left out"""
    hook: tyro.conf.Suppress[Callable[[float], None]] = print
    """a function"""


def help_of(args_type: Any) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
        tyro.cli(args_type, args=["--help"], description="")
    return " ".join(said.getvalue().replace("│", " ").split())


def test_arguments_are_shown_without_the_marks_of_a_parser(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    before = get_type_hints(Args, include_extras=True)
    with readable_help(Args):
        shown = help_of(Args)
    for words in (
        "--names STR … names that are many --folder PATH a folder --widths INT … widths (default: 8 6)",
        "--formats {png,pdf} … files (default: png) --step INT a step --three",
        "--title STR a title --place STR a place (default: here)",
        "RUN a run (default: runs)",
        "[-h] [OPTIONS] [STR …] RUN",
        "[STR …] words",
        "--own NAME a form of its own (mine)",
        "--known STR given again and again (repeatable)",
        "--either {None}|INT|STR a number or a word (default: None)",
        "--off {None}|FLOAT a number that may be left out (default: 0.5)",
    ):
        assert words in shown, words
    assert "--three FLOAT FLOAT FLOAT three numbers (default: 0.0 0.0 1.0)" in shown
    assert get_type_hints(Args, include_extras=True) == before
    assert docstring_parser.parse_from_object is docstring_parser.parser.parse_from_object
    assert "--names [STR [STR ...]]" in help_of(Args)  # and all is as it was
