"""Finite-horizon decision processes as tables: exact answers, and environments to learn in."""

from envs.tabular.exact import Analysis, Greedy, evaluate
from envs.tabular.table import Table, load_table, save_table

__all__ = ["Analysis", "Greedy", "Table", "evaluate", "load_table", "save_table"]
