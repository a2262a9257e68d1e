"""The kind of error that users can mend: it is printed as one sentence, without a traceback."""

import re
import sys


class UserError(Exception):
    """Bad input or an unusable folder: the message names the argument, its value and valid values. Exit code 2.

    The message is one line, even where it quotes a library's message of several, and long words are cut.
    """

    def __init__(self, message: str):
        line = " ".join(line.strip() for line in message.splitlines())
        super().__init__(re.sub(r"\S{400,}", lambda word: f"{word[0][:200]}…{word[0][-100:]}", line))


def warn(sentence: str) -> None:
    """Prints a warning."""
    print(f"warning: {sentence}", file=sys.stderr)


def describe(error: BaseException) -> str:
    """An error of any library on one line, with its kind, which some messages say nothing without."""
    said = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
