"""Cases that an expert is asked about however sure the judge is.

Nothing in memory is like them, or what is like them is contradictory.

Embedders differ in what similarity they give to cases that are alike, and memories in how much
their experts agree. So both are measured by the memory itself: what is rare among its own cases,
each as if it were new, is worth a question.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from memalign_graph.agreement import on_scale
from memalign_graph.evidence.cases import Case, CaseTable, Floats, table_of
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import index_missing
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.memory.view import MemoryView
from memalign_graph.scales import Boolean, Categorical, Numeric, Scale, Value
from memalign_graph.types import ReviewReason

UNLIKE_SHARE = 0.05
"""A case is unlike all that memory holds if at most this share of memory's own cases has its
nearest other case as far away: it takes 19 cases to tell."""

DIVIDED_SHARE = 0.1
"""Similar cases disagree if they do so more than a bound, and at most this share of memory's own
cases has neighbours that disagree as much: it takes 9 cases to tell. Where neighbours disagree
everywhere it says nothing of a case, and the judge's confidence tells what it is worth."""

CLEAR_MAJORITY = 2 / 3
"""On a finite scale: less than this share of the nearest cases with the same value is no clear
majority."""

WIDE = 0.25
"""On a scale of numbers, or of choices in order: the middle half of the nearest cases' values spans
more than this share of the range."""

NEAREST = 5
"""How many of the most similar cases are compared."""

_TIE = 1e-6
"""How much less similar a case may be and still count as equally so."""

_SMALL = 1e-9


@dataclass(frozen=True)
class OwnCases:
    """How the cases in memory look among the others, each left out."""

    nearest: Floats
    """The similarity of the nearest other case to each."""

    divisions: Floats
    """How far the values of the nearest other cases are apart, for each: see `division`."""


def is_unlike(nearest: float, own: Floats) -> bool:
    """Tell whether a case is unlike all that memory holds."""
    return bool(_rank((own <= nearest + _TIE).sum(), own) <= UNLIKE_SHARE)


def is_divided(division: float, own: Floats, scale: Scale) -> bool:
    """Tell whether the cases most like a case are remarkably far apart."""
    bound = WIDE if _has_order(scale) else 1 - CLEAR_MAJORITY
    if division <= bound + _SMALL:
        return False
    return bool(_rank((own >= division - _SMALL).sum(), own) <= DIVIDED_SHARE)


def division(said: Floats, scale: Scale) -> Floats:
    """Measure how far the values of the nearest cases are apart."""
    import numpy as np

    there = np.isfinite(said)
    counted = there[:, :, 0].sum(axis=1)
    if not counted.any():
        return np.zeros(len(said))
    known = np.where(counted[:, None, None] > 0, said, 0.0)  # of nothing there are no quantiles
    if _has_order(scale):
        low, high = np.nanquantile(known[:, :, 0], [0.25, 0.75], axis=1)
        spans: Floats = high - low
        return spans
    commonest = np.nansum(known, axis=1).max(axis=1)
    others: Floats = np.where(counted > 0, 1 - commonest / np.maximum(counted, 1), 0.0)
    return others


async def flags_of(io: IO, access: MemoryAccess, vector: Vector | None) -> list[ReviewReason]:
    """Tell why an expert is asked about a case, whatever the judge's confidence."""
    view = await access.refresh(io)
    await index_missing(io, access, view)
    scale = access.criterion.scale
    table = table_of(view, scale)
    with table.lock:
        table.refresh()
        near = [] if vector is None else table.near(vector)[:NEAREST]
        if not near:
            return ["no_similar_episode"]
        return _flags(near, _own_cases(table, view, scale), view, scale)


def _flags(
    near: Sequence[tuple[Case, float]], own: OwnCases, view: MemoryView, scale: Scale
) -> list[ReviewReason]:
    import numpy as np

    flags: list[ReviewReason] = []
    if is_unlike(near[0][1], own.nearest):
        flags.append("no_similar_episode")
    [apart] = division(np.array([[_said(view, case, scale) for case, _ in near]]), scale).tolist()
    if is_divided(apart, own.divisions, scale):
        flags.append("episodes_disagree")
    return flags


def _own_cases(table: CaseTable, view: MemoryView, scale: Scale) -> OwnCases:
    import numpy as np

    known = _known.get(table)
    if known is not None and known[0] == table.generation:
        return known[1]
    near = table.near_judged(table.judged())
    slots = near.slots[:, :NEAREST]
    values = {case.value for case in table.voters.values()}
    plain = {value: _shares([value], scale) for value in values}
    said = {
        key: plain[case.value] if len(case.episode_ids) == 1 else _said(view, case, scale)
        for key, case in table.voters.items()
    }
    places = [
        table.by_slot(lambda case, at=at: said[case.key][at])[slots]  # type: ignore[misc]
        for at in range(len(next(iter(said.values()))))
    ]
    own = OwnCases(
        nearest=near.similarities[:, 0],
        divisions=division(
            np.where(slots[:, :, None] < 0, np.nan, np.stack(places, axis=-1)), scale
        ),
    )
    _known[table] = (table.generation, own)
    return own


_known: WeakKeyDictionary[CaseTable, tuple[int, OwnCases]] = WeakKeyDictionary()


def _said(view: MemoryView, case: Case, scale: Scale) -> list[float]:
    """Return what the experts say of a case, as `division` takes it."""
    if len(case.episode_ids) == 1 or _has_order(scale):
        return _shares([case.value], scale)
    given = [on_scale(row.value, scale) for row in view.rows_at(case.key)]
    return _shares([one for one in given if one is not None] or [case.value], scale)


def _shares(given: Sequence[Value], scale: Scale) -> list[float]:
    """Return the place of a value on a scale with an order, else the share of each value."""
    if isinstance(scale, Numeric):
        return [(float(given[0]) - scale.minimum) / (scale.maximum - scale.minimum)]
    choices: Sequence[Value] = (False, True) if isinstance(scale, Boolean) else scale.choices
    if _has_order(scale):
        return [choices.index(given[0]) / (len(choices) - 1)]
    return [given.count(one) / len(given) for one in choices]


def _rank(count: int, own: Floats) -> float:
    return (1 + count) / (1 + len(own))


def _has_order(scale: Scale) -> bool:
    return isinstance(scale, Numeric) or (isinstance(scale, Categorical) and scale.ordered)
