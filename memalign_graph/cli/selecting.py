"""Items named by the beginning of their id, as people type them. Pure functions."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from memalign_graph.errors import InvalidInputError

LEAST_CHARS = 4
"""How much of an id has to be typed."""

_SHORT_CHARS = 8


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Shorten ids so that each still names one item."""
    known = sorted(set(ids))
    shared = [_shared(one, other) for one, other in pairwise(known)]
    chars = max([_SHORT_CHARS, *(number + 1 for number in shared)])
    return {one: one[:chars] for one in known}


def find_id(given: str, ids: Iterable[str], what: str) -> str:
    """Find the one id that begins as given."""
    known = set(ids)
    typed = given.strip().lower()
    if given in known or typed in known:
        return given if given in known else typed
    if len(typed) < LEAST_CHARS:
        raise InvalidInputError(
            f"{given!r} is too short to name a {what}: give at least {LEAST_CHARS} characters of "
            "its id."
        )
    found = sorted(one for one in known if one.startswith(typed))
    if not found:
        raise InvalidInputError(
            f"no {what} has an id that begins with {given!r}: `memalign memory list` and "
            "`memalign memory history` show the ids."
        )
    if len(found) > 1:
        raise InvalidInputError(
            f"{given!r} names {len(found)} of them ({_some(found, typed)}): give more of the id."
        )
    return found[0]


def _shared(one: str, other: str) -> int:
    """Count the characters that two texts have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _some(found: Sequence[str], typed: str, most: int = 3) -> str:
    chars = max(len(typed) + 4, _SHORT_CHARS)
    shown = [one[:chars] for one in found[:most]]
    return ", ".join(shown) + (", …" if len(found) > most else "")
