"""A suite of small runs, for tests of sweeps."""

from pathlib import Path

from benchmarks import plan
from benchmarks import suite as suites

SUITE = """
purpose = "a test"
tasks = ["InvertedPendulum-v5"]
seeds = "0:2"
total_steps = STEPS
eval_every = 500
eval_episodes = 1
[flags]
hidden = [8]
batch_size = 8
learning_starts = 200
[algorithms.sac]
"""
SECOND = '[algorithms.other]\nscript = "sac"\nflags = { discount = 0.9 }\n'
VARIED = SUITE + "vary = { critic_lr = [1e-4, 3e-4, 1e-3], tau = [0.005, 0.01] }\n"


def write(folder: Path, text: str = SUITE, steps: int = 1_000) -> Path:
    path = folder / "suite.toml"
    path.write_text(text.replace("STEPS", str(steps)))
    return path


def jobs(suite: Path, out: Path, seeds_per_job: int = 0) -> list[plan.Job]:
    read = suites.read(suite)
    return plan.plan(read, out, plan.seeds_per_job(read, seeds_per_job, False, 1), "cpu", {"threads": 1})
