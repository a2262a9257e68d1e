"""The kind of error that users can mend: it is printed as one sentence, without a traceback."""


class UserError(Exception):
    """Bad input or an unusable folder: the message names the argument, its value and valid values. Exit code 2."""
