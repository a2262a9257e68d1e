"""DSAC-T and SAC learn to run: four seeds each on HalfCheetah-v5, a figure and a table, in a few minutes on two cores.

    python -m benchmarks.demo

To be quick, networks and batches are smaller and DSAC-T's learning rates higher than the defaults of the scripts.
"""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.compare import Args, main

ROOT = Path(__file__).parents[1]
OUT = Path("runs/demo")
FLAGS = [
    "--env-id", "HalfCheetah-v5", "--seeds", "0:4", "--total-steps", "24000", "--learning-starts", "1000",
    "--hidden", "128", "128", "--batch-size", "128", "--eval-every", "2000", "--eval-episodes", "3",
    "--out", str(OUT), "--threads", "1", "--resume",
]  # fmt: skip
RATES = ["--actor-lr", "1e-3", "--critic-lr", "1e-3", "--temperature-lr", "1e-3"]


def demo() -> None:
    """Trains both at the same time, one thread each, and compares them."""
    print("DSAC-T and SAC on HalfCheetah-v5, seeds 0 to 3, 24,000 steps each:", flush=True)
    jobs = [("dsac_t", [*FLAGS, *RATES]), ("sac", FLAGS)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, str(ROOT / "single_file" / f"{name}.py"), *flags], env=environment)
        for name, flags in jobs
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(max(codes))
    print()
    main(Args((OUT,), OUT, "DSAC-T and SAC, four seeds each"))
    print(f"learning curves: {(OUT / 'HalfCheetah-v5.png').resolve()}")


if __name__ == "__main__":
    demo()
