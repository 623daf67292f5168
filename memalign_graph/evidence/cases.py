"""The cases that evidence is fitted to: examples that experts valued, with the judge's verdict."""

import re
from collections import defaultdict
from collections.abc import Callable, Container
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from memalign_graph.agreement import consensus, value_or_none
from memalign_graph.evidence.verdicts import RawVerdict
from memalign_graph.memory.episode_row import EpisodeRow, PastVerdict
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.memory.view import MemoryView
from memalign_graph.models import name_in_key
from memalign_graph.scales import Scale, Value

MAX_CASES = 1_000  # the newest: more would take seconds at each change of a memory


@dataclass(frozen=True)
class Case:
    """An example that experts valued, and what the present judge said before it could know that."""

    key: str
    """Of its vector, which examples with one text share."""
    vector: Vector
    example_id: str
    episode_ids: list[str]
    given: list[Value]
    value: Value
    said: RawVerdict | None
    judged_at: datetime
    """When feedback on that verdict was given."""


IsPresent = Callable[[PastVerdict], bool]
"""Whether a stored verdict is the present judge's."""


def is_present(view: MemoryView, judge_key: str | None) -> IsPresent:
    """Return what tells verdicts of a judge; without a key, of that which gave the newest one."""
    name: str | None = name_in_key(judge_key or "")
    if judge_key is None:
        newest = next((row.judged for row in view.newest() if row.judged is not None), None)
        judge_key, name = (newest.judge_key, newest.model) if newest else (None, None)

    def is_its(judged: PastVerdict) -> bool:
        if judged.judge_key is not None or not (name or judge_key is None):
            return judged.judge_key == judge_key
        # Stored by an earlier version: the model's name has to do.
        return name in (judged.model, judged.model and _DATE.sub("", judged.model))

    return is_its


_DATE = re.compile(r"-\d{4}-\d{2}-\d{2}$")  # what a provider adds to the name that was asked for


def cases_at(
    view: MemoryView, key: str, vector: Vector, scale: Scale, is_its: IsPresent
) -> list[Case]:
    """Return the cases whose examples have a vector."""
    by_example: dict[str, list[EpisodeRow]] = defaultdict(list)
    for row in sorted(view.rows_for_vector(key), key=lambda row: (row.given_at, row.id)):
        by_example[row.example_id].append(row)
    cases = (_case_of(key, vector, by_example[one], scale, is_its) for one in sorted(by_example))
    return [case for case in cases if case]


def _case_of(
    key: str, vector: Vector, rows: list[EpisodeRow], scale: Scale, is_its: IsPresent
) -> Case | None:
    given = [value for row in rows if (value := value_or_none(row.value, scale)) is not None]
    if not given:
        return None
    ids, said, judged_at = sorted(row.id for row in rows), None, rows[0].given_at
    for row in reversed(rows):
        judged = row.judged
        if judged is not None and is_its(judged) and set(ids).isdisjoint(judged.shown):
            verdict = value_or_none(judged.verdict, scale)
            if verdict is not None:
                said, judged_at = RawVerdict(verdict, judged.probabilities), row.given_at
    value = consensus(given, scale) if given[1:] else given[0]
    return Case(key, vector, rows[0].example_id, ids, given, value, said, judged_at)


def newest(view: MemoryView, excluded_ids: Container[str] = ()) -> list[str]:
    """Return the vector keys of the newest cases, but for examples that have no vote."""
    keys = (row.vector_key for row in view.newest() if row.example_id not in excluded_ids)
    return list(islice(dict.fromkeys(keys), MAX_CASES))
