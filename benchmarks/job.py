"""Runs a script as a child that ends, cleanly, when its parent does: python -m benchmarks.job SCRIPT [FLAGS]

The parent holds a pipe to the standard input and never writes to it. When the parent has ended, however it ended, the
pipe closes and the script gets a SIGTERM; it then writes a checkpoint and stops.
"""

import os
import runpy
import signal
import sys
import threading


def end_with_parent() -> None:
    os.read(0, 1)  # sys.stdin's own buffer would be locked when the script ends
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not os.path.isfile(sys.argv[1]):
        print("error: the first argument is the file of a script", file=sys.stderr)
        sys.exit(2)
    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
