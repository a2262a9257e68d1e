"""The one kind of error that is the user's to mend: said in a sentence, without a traceback."""


class UserError(Exception):
    """Bad input or a bad place: the message names the argument, what it got and what would do. Exit code 2."""
