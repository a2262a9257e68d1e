"""The form of --help: docstrings in lines that fit into the terminal, and arguments without the marks of a parser."""

import contextlib
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
import tyro
from docstring_parser import parse_from_object

KINDS = {str: "STR", int: "INT", float: "FLOAT", Path: "PATH"}


def wrapped(text: str) -> str:
    """A docstring in lines that fit into the terminal; what is indented, such as a command, stays as it is."""
    width = shutil.get_terminal_size().columns
    return "\n\n".join(
        part if part.startswith(" ") else textwrap.fill(part, width, break_long_words=False, break_on_hyphens=False)
        for part in text.strip().split("\n\n")
    )


@contextlib.contextmanager
def readable_help(args_type: type) -> Iterator[None]:
    """While it lasts, tyro shows the arguments of a dataclass in a form that is easy to read.

    Each is explained by one paragraph, without the line ends of the file. Where its words are of a kind in `KINDS`, one
    that takes any number of them is `STR …` and not `[STR [STR ...]]`, one that is None by default is `PATH` and not
    `{None}|PATH`, and nothing is said of an empty default.
    """
    with contextlib.ExitStack() as undo:
        undo.callback(setattr, docstring_parser, "parse_from_object", parse_from_object)
        docstring_parser.parse_from_object = described
        for base in args_type.__mro__:
            if "__dataclass_fields__" in vars(base):
                undo.callback(base.__annotations__.update, dict(base.__annotations__))
                base.__annotations__.update(shown(base))
        yield


def described(
    obj: Any, style: docstring_parser.DocstringStyle = docstring_parser.DocstringStyle.AUTO
) -> docstring_parser.Docstring:
    """The docstrings of an object and of its fields, the latter without line ends."""
    docs = parse_from_object(obj, style)
    for one in docs.params:
        one.description = " ".join((one.description or "").split())
    return docs


def shown(base: type) -> dict[str, Any]:
    """New annotations for those arguments of a class that help shows in another form.

    An argument with marks of tyro in its type keeps the form that these give it.
    """
    types, forms = get_type_hints(base), {}
    for name, hint in get_type_hints(base, include_extras=True).items():
        kind, default = types[name], getattr(base, name, None)
        parts = [part for part in get_args(kind) if part is not NoneType]
        several = get_origin(kind) is tuple and parts[1:] == [...]
        optional = get_origin(kind) in (Union, UnionType) and len(parts) == 1 and default is None
        marks = [mark for mark in get_args(hint)[1:] if type(mark).__module__.startswith("tyro.")]
        others = [mark for mark in marks if mark is not tyro.conf.Positional]
        if name not in base.__annotations__ or others or not (kind is str or several or optional):
            continue
        first = kind if kind is str else parts[0]
        choices = "{" + ",".join(map(str, get_args(first))) + "}" if get_origin(first) is Literal else None
        if word := KINDS.get(first, choices):
            word += several * " …"
            spared = several and marks and default == ()
            form = tyro.conf.arg(metavar=f"[{word}]" if spared else word, help_behavior_hint=default_hint)
            forms[name] = Annotated[hint, form]
    return forms


def default_hint(default: str) -> str:
    """The words on a default; none on an empty one."""
    return f"(default: {default})" if default not in ("", "''", "None") else ""
