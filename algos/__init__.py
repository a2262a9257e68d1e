"""The parts that the algorithms share: layers with a run axis, random numbers per run, replay, data, the run itself."""

from importlib.util import find_spec
from pathlib import Path

_own, _spec = Path(__file__).parents[1] / "envs", find_spec("envs")
_places = _spec and (_spec.submodule_search_locations or [_spec.origin or ""])
if _places and _own not in (_found := [Path(place) for place in _places]):
    raise ImportError(
        f"the package envs of {_own.parent} is hidden by one of the same name, {', '.join(map(str, _found))}"
    )
