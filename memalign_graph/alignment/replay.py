"""Judge seen cases again before a commit, and drop guidelines that regress more than chance does.

The cases whose verdict agrees with the experts are counted without the operations and with them. If
more are lost than won, beyond chance, the operation without which most of the lost cases agree
again is dropped, and the cases are counted again with the others.
"""

import math
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memalign_graph.agreement import consensus_value, value_or_none, values_agree
from memalign_graph.alignment.report import BrokenCase, Replay
from memalign_graph.errors import MemAlignError, is_about_prompt
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.guidelines import GuidelineOperation, apply_operations
from memalign_graph.memory.recall import index_missing, vector_key_of_example
from memalign_graph.prompts.distill import group_by_example
from memalign_graph.scales import Scale, Value
from memalign_graph.tracing import MeteredIO
from memalign_graph.types import Episode, Example, Guideline, Judgment

JudgeFunction = Callable[..., Coroutine[Any, Any, Judgment]]
"""Judges an example with `guidelines` and without `excluded_episode_ids`."""

_SAMPLED_SHARE = 4
"""One case in so many is drawn at random; the others are the nearest to the new feedback."""

_NEIGHBORS_PER_SOURCE = 20

_SLACK = 2
"""A net loss of so many cases drops no guideline."""

_MAX_TRIED = 10
"""The lost cases that are judged again to find the operation at fault."""


@dataclass(frozen=True)
class ReplayCase:
    """A seen case: the experts' episodes on it, and their consensus value."""

    episodes: list[Episode]
    expected: Value

    @property
    def example_id(self) -> str:
        return self.episodes[0].example_id

    @property
    def example(self) -> Example:
        return self.episodes[0].example


async def replay(
    io: MeteredIO,
    access: MemoryAccess,
    judge: JudgeFunction,
    operations: Sequence[GuidelineOperation],
    *,
    max_cases: int,
    limit: int,
    report: Callable[[int, int], None],
) -> tuple[list[GuidelineOperation], Replay]:
    """Judge seen cases with the operations; return the operations to keep, and the result.

    `report` takes the number of judged cases, and of all.
    """
    calls = io.usage.chat_calls
    cases = await select_cases(io, access, operations, max_cases)
    run = _Replay(io, access, judge, limit, await access.guidelines(io))
    report(0, len(cases))
    agreed = await run.agreeing(cases, run.guidelines_after([]))
    retained, broken = [*operations], list[BrokenCase]()
    while True:
        agree_now = await run.agreeing(cases, run.guidelines_after(retained))
        lost = agreed - agree_now - run.failed.keys()
        won = agree_now - agreed - run.failed.keys()
        if not retained or not _is_beyond_chance(len(lost), len(won)):
            break
        fault = await run.find_fault(retained, [case for case in cases if case.example_id in lost])
        if fault is None:
            break
        operation, regressed = fault
        # What the dropped guideline was to replace stays, too.
        key = operation.guideline_id or ""
        retained = [item for item in retained if item != operation and item.superseded_by != key]
        broken += [run.broken_case(operation, case) for case in regressed]
    report(len(cases), len(cases))
    agreed -= run.failed.keys()
    return retained, Replay(
        cases=len(cases),
        agreed_before=len(agreed),
        agree_after=len(agreed & agree_now),
        newly_agree=len(won - run.failed.keys()),
        chat_calls=io.usage.chat_calls - calls,
        broken=broken,
        failed={key: str(error) for key, error in run.failed.items()},
    )


def _is_beyond_chance(lost: int, won: int) -> bool:
    """Return whether the net loss is beyond chance: a one-sided McNemar test at 5 %."""
    return lost - won > 1.645 * math.sqrt(lost + won)


@dataclass
class _Replay:
    """Judges cases, each without its own episodes."""

    io: MeteredIO
    access: MemoryAccess
    judge: JudgeFunction
    limit: int
    active: list[Guideline]
    predicted: dict[str, Value] = field(default_factory=dict)
    """The newest verdict that disagrees, by example id."""
    failed: dict[str, MemAlignError] = field(default_factory=dict)
    """Errors of cases that can't be judged, by example id; these cases are not counted."""

    def guidelines_after(self, operations: Sequence[GuidelineOperation]) -> list[Guideline]:
        after = apply_operations(self.active, operations)
        return sorted(after, key=lambda guideline: (guideline.position, guideline.id))

    async def agreeing(
        self, cases: Collection[ReplayCase], guidelines: list[Guideline]
    ) -> set[str]:
        """Return the ids of the examples whose verdict agrees with their experts."""

        async def agreeing_id(case: ReplayCase) -> str | None:
            own = frozenset(episode.id for episode in case.episodes)
            try:
                judgment = await self.judge(
                    case.example, guidelines=guidelines, excluded_episode_ids=own
                )
            except MemAlignError as error:
                if not is_about_prompt(error):
                    raise
                self.failed[case.example_id] = error
                return None
            if values_agree(self.access.criterion.scale, judgment.value, case.expected):
                return case.example_id
            self.predicted[case.example_id] = judgment.value
            return None

        judging = [agreeing_id(case) for case in cases if case.example_id not in self.failed]
        return {*filter(None, await self.io.gather(judging, self.limit))}

    async def find_fault(
        self, operations: Sequence[GuidelineOperation], lost: Sequence[ReplayCase]
    ) -> tuple[GuidelineOperation, list[ReplayCase]] | None:
        """Bisect for the operation without which most lost cases agree; return it with them.

        None if no single operation brings back more cases than the slack.
        """
        tried, suspects = lost[:_MAX_TRIED], list(operations)
        while True:
            middle = (len(suspects) + 1) // 2
            halves = [half for half in (suspects[:middle], suspects[middle:]) if half]
            without = [[item for item in operations if item not in half] for half in halves]
            agreeing = [await self.agreeing(tried, self.guidelines_after(rest)) for rest in without]
            best, suspects = max(zip(agreeing, halves, strict=True), key=lambda half: len(half[0]))
            if len(best) <= _SLACK:
                return None
            if len(suspects) == 1:
                return suspects[0], [case for case in tried if case.example_id in best]

    def broken_case(self, operation: GuidelineOperation, case: ReplayCase) -> BrokenCase:
        texts = {guideline.id: guideline.text for guideline in self.active}
        target = operation.guideline_id or ""
        return BrokenCase(
            example_id=case.example_id,
            episode_ids=[episode.id for episode in case.episodes],
            expected=case.expected,
            got=self.predicted[case.example_id],
            guideline=operation.text or f"({operation.action}) {texts.get(target, target)}",
        )


async def select_cases(
    io: IO, access: MemoryAccess, operations: Sequence[GuidelineOperation], count: int
) -> list[ReplayCase]:
    """Select the seen cases nearest to the operations' sources, and a random sample of others."""
    view, scale = await access.refresh(io), access.criterion.scale
    await index_missing(io, access)
    valued = {
        row.vector_key: None for row in view.rows() if value_or_none(row.value, scale) is not None
    }
    sources = await access.episodes(io, (key for item in operations for key in item.episode_ids))
    keys = [vector_key_of_example(access, source.example) for source in sources.values()]
    similarities: dict[str, float] = {}
    for vector in view.vectors(keys).values():
        for key, similarity in view.index.search(vector, _NEIGHBORS_PER_SOURCE):
            if key in valued:
                similarities[key] = max(similarities.get(key, -1.0), similarity)
    near = sorted(similarities, key=lambda key: (-similarities[key], key))
    rest = [key for key in valued if key not in similarities]
    # Seeded by the version, so that a run that is repeated judges the same cases.
    rng = random.Random(view.version)  # noqa: S311 - nothing secret
    drawn = rng.sample(rest, min(len(rest), count))
    nearest = max(count - count // _SAMPLED_SHARE, 1)
    keys = [*near[:nearest], *drawn, *near[nearest:]]
    ids = [row.id for key in keys for row in view.rows_for_vector(key)]
    return replay_cases_from((await access.episodes(io, ids)).values(), scale)[:count]


def replay_cases_from(episodes: Iterable[Episode], scale: Scale) -> list[ReplayCase]:
    """Group episodes into cases with experts' values, in the order of their first episodes."""
    valued = [
        episode.model_copy(update={"value": value})
        for episode in episodes
        if (value := value_or_none(episode.value, scale)) is not None
    ]
    values = [(case, consensus_value(case, scale)) for case in group_by_example(valued)]
    return [ReplayCase(case, value) for case, value in values if value is not None]
