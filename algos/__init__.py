"""The parts that the algorithms share: layers with a run axis, random numbers per run, replay, data, the run itself."""

from importlib.util import find_spec
from pathlib import Path

_beside = Path(__file__).parents[1] / "envs"
if not ((_spec := find_spec("envs")) and str(_beside) in (_spec.submodule_search_locations or ())):
    raise ImportError(
        f"the package envs of {_beside.parent} is hidden by one of the same name"
        + (f", {_spec.origin or list(_spec.submodule_search_locations or ())}" if _spec else "")
    )
