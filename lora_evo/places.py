"""Names of modules: which layer one is in, and which ones a pattern selects."""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from lora_evo.errors import OperatorError

_LAYER = re.compile(r"^(.*?\.\d+)(\.|$)")


def layer_of(place: str) -> str:
    """The layer a module is in: its path up to the first number, `model.layers.3`; the path itself where there is none."""
    found = _LAYER.match(place)
    return found.group(1) if found else place


def selected(places: Iterable[str], patterns: Sequence[str]) -> set[str]:
    """The places that shell patterns name. `!pattern` excludes; the last pattern that matches decides.

    With only exclusions, all else is included. A pattern is matched against the whole path and against its ends at a
    dot: `q_proj` and `*.q_proj` both name every q_proj.

    Raises:
        OperatorError: for a pattern that names nothing.
    """
    places = list(places)
    chosen = set(places) if all(p.startswith("!") for p in patterns) else set()
    for pattern in patterns:
        glob = pattern.removeprefix("!")
        named = {place for place in places if _named(place, glob)}
        if not named:
            raise OperatorError(f"pattern {pattern!r} names no module; there are {', '.join(sorted(places)[:8])} ...")
        chosen = chosen - named if pattern.startswith("!") else chosen | named
    return chosen


def _named(place: str, glob: str) -> bool:
    return fnmatchcase(place, glob) or fnmatchcase(place, f"*.{glob}")
