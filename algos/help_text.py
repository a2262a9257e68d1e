"""What --help shows: docstrings in lines that fit into the terminal, and arguments without the marks of a parser."""

import contextlib
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import docstring_parser
import tyro

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

    Each is explained by one paragraph, without the line ends of the file. One that takes any number of words is `STR …`
    and not `[STR [STR ...]]`, one that may be left out `PATH` and not `{None}|PATH`, and nothing is said of an empty
    default.
    """
    read, annotations = docstring_parser.parse_from_object, []

    def joined(
        obj: Any, style: docstring_parser.DocstringStyle = docstring_parser.DocstringStyle.AUTO
    ) -> docstring_parser.Docstring:
        docs = read(obj, style)
        for one in docs.params:
            one.description = " ".join((one.description or "").split())
        return docs

    docstring_parser.parse_from_object = joined
    for base in args_type.__mro__:
        if "__dataclass_fields__" in vars(base):
            own = base.__annotations__
            annotations.append((own, dict(own)))
            own.update(readable(base))
    try:
        yield
    finally:
        docstring_parser.parse_from_object = read
        for own, before in annotations:
            own.update(before)


def readable(base: type) -> dict[str, Any]:
    """The types of the arguments in a class of which help is to show another form."""
    types, forms = get_type_hints(base), {}
    for name, hint in get_type_hints(base, include_extras=True).items():
        kind, parts = types[name], get_args(types[name])
        several = get_origin(kind) is tuple and ... in parts
        if name not in base.__annotations__ or not (kind is str or several or NoneType in parts):
            continue
        first = kind if kind is str else next(part for part in parts if part is not NoneType)
        choices = "{" + ",".join(map(str, get_args(first))) + "}" if get_origin(first) is Literal else None
        if word := KINDS.get(first, choices):
            forms[name] = Annotated[hint, tyro.conf.arg(metavar=word + several * " …", help_behavior_hint=told)]
    return forms


def told(default: str) -> str:
    """What is said of a default, if it is not empty."""
    return f"(default: {default})" if default not in ("", "''", "None") else ""
