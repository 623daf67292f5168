"""Judge seen cases again before a commit, and drop the guidelines that lose more than chance does.

A change of the guidelines is a list of operations. The cases that agree with their experts are
counted before it and with it. If more are lost than won, beyond what verdicts that turn by chance
explain, the operation without which most of the lost cases agree again is dropped, and the others
are counted once more.
"""

import math
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memalign_graph.agreement import values_agree
from memalign_graph.alignment.cases import Case, select_cases
from memalign_graph.alignment.report import BrokenCase, Replay
from memalign_graph.errors import ChatModelError, ModelAnswerError, is_about_prompt
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.guidelines import GuidelineOperation, applied
from memalign_graph.models import MeteredIO
from memalign_graph.scales import Value
from memalign_graph.types import Example, Guideline

JudgeCase = Callable[[Example, list[Guideline], frozenset[str]], Coroutine[Any, Any, Value]]
"""Judges an example with some guidelines, as if some episodes were not in memory."""

_SLACK = 2
"""A net loss of so many cases is never held against a guideline."""

_MAX_TRIED = 10
"""Lost cases that are judged again without each operation, to find the one at fault."""


async def replay(
    io: MeteredIO,
    access: MemoryAccess,
    judge: JudgeCase,
    operations: Sequence[GuidelineOperation],
    rewordings: Sequence[GuidelineOperation],
    *,
    before: Sequence[Guideline],
    new_episodes: Iterable[str],
    cases: int,
    limit: int,
    report: Callable[[int, int], None],
) -> tuple[list[GuidelineOperation], list[GuidelineOperation], Replay]:
    """Judge seen cases with the operations, and drop those that lose cases.

    Returns:
        The operations and the rewordings that are left, and what the replay showed.
    """
    calls = io.usage.chat_calls
    proposed = [one for one in rewordings if one.action != "retire"]
    retired = [one for one in rewordings if one.action == "retire"]
    chosen = await select_cases(io, access, [*proposed, *operations], cases)
    run = _Run(io, access, judge, limit)
    report(0, len(chosen))
    agreed = await run.agreeing(chosen, [*before], frozenset(new_episodes))
    standing = await access.guidelines(io)
    kept, broken = [*proposed, *operations], list[BrokenCase]()

    def guidelines_with(operations: Sequence[GuidelineOperation]) -> list[Guideline]:
        after = applied(standing, [*retired, *operations])
        return sorted(after, key=lambda guideline: (guideline.position, guideline.id))

    while True:
        agree_now = await run.agreeing(chosen, guidelines_with(kept))
        lost = [
            case for case in chosen if case.example_id in agreed - agree_now - run.failed.keys()
        ]
        won = len(agree_now - agreed - run.failed.keys())
        agree_without = await run.agreeing(lost, guidelines_with([]))
        by_guidelines = [case for case in lost if case.example_id in agree_without]
        if not kept or not _is_beyond_chance(len(by_guidelines), won):
            break
        fault = await _find_fault(run, kept, by_guidelines, guidelines_with)
        if fault is None:
            break
        operation, recovered = fault
        kept.remove(operation)
        broken += _broken_cases(operation, recovered, run.values, standing)
    report(len(chosen), len(chosen))
    agreed -= run.failed.keys()
    return (
        [one for one in kept if one not in proposed],
        [*retired, *(one for one in kept if one in proposed)],
        Replay(
            cases=len(chosen),
            agreed_before=len(agreed),
            agree_after=len(agreed) - len(lost),
            newly_agree=won,
            chat_calls=io.usage.chat_calls - calls,
            broken=broken,
            turned_by_episodes=[
                case.example_id for case in lost if case.example_id not in agree_without
            ],
            failed={key: str(error) for key, error in run.failed.items()},
        ),
    )


@dataclass
class _Run:
    """Judges cases, each as if its own episodes were not in memory."""

    io: MeteredIO
    access: MemoryAccess
    judge: JudgeCase
    limit: int
    values: dict[str, Value] = field(default_factory=dict)
    """The newest verdict that disagrees, by example id."""
    failed: dict[str, Exception] = field(default_factory=dict)
    """Why a case can't be judged, by example id; such a case counts nowhere."""

    async def agreeing(
        self,
        cases: Collection[Case],
        guidelines: list[Guideline],
        excluded: frozenset[str] = frozenset(),
    ) -> set[str]:
        """Return the ids of the examples whose verdict agrees with their experts."""
        judging = [
            self._agrees(case, guidelines, excluded)
            for case in cases
            if case.example_id not in self.failed
        ]
        return {key for key in await self.io.gather(judging, self.limit) if key is not None}

    async def _agrees(
        self, case: Case, guidelines: list[Guideline], excluded: frozenset[str]
    ) -> str | None:
        own = frozenset(episode.id for episode in case.episodes)
        try:
            value = await self.judge(case.example, guidelines, own | excluded)
        except (ChatModelError, ModelAnswerError) as error:
            if not is_about_prompt(error):
                raise
            self.failed[case.example_id] = error
            return None
        if values_agree(self.access.criterion.scale, value, case.expected):
            return case.example_id
        self.values[case.example_id] = value
        return None


def _is_beyond_chance(lost: int, won: int) -> bool:
    """Tell whether the net loss exceeds what turns by chance: a one-sided McNemar test at 5 %."""
    return lost - won > max(_SLACK, 1.645 * math.sqrt(lost + won))


async def _find_fault(
    run: _Run,
    operations: Sequence[GuidelineOperation],
    lost: Sequence[Case],
    guidelines_with: Callable[[Sequence[GuidelineOperation]], list[Guideline]],
) -> tuple[GuidelineOperation, list[Case]] | None:
    """Find the operation without which most lost cases agree, by halving; with these cases.

    None where no single operation brings back more than chance may.
    """
    tried, suspects = lost[:_MAX_TRIED], list(operations)
    while True:
        middle = (len(suspects) + 1) // 2
        halves = [half for half in (suspects[:middle], suspects[middle:]) if half]
        without = [[one for one in operations if one not in half] for half in halves]
        agreeing = await run.io.gather(
            [run.agreeing(tried, guidelines_with(rest)) for rest in without], run.limit
        )
        best, suspects = max(zip(agreeing, halves, strict=True), key=lambda half: len(half[0]))
        if len(best) <= _SLACK:
            return None
        if len(suspects) == 1:
            return suspects[0], [case for case in tried if case.example_id in best]


def _broken_cases(
    operation: GuidelineOperation,
    cases: Iterable[Case],
    values: dict[str, Value],
    standing: Iterable[Guideline],
) -> list[BrokenCase]:
    texts = {guideline.id: guideline.text for guideline in standing}
    target = operation.guideline_id or ""
    is_worded = operation.action in ("add", "revise") and operation.text
    shown = f"({operation.action}) {texts.get(target, target)}"
    return [
        BrokenCase(
            example_id=case.example_id,
            episode_ids=[episode.id for episode in case.episodes],
            expected=case.expected,
            got=values[case.example_id],
            guideline=operation.text or "" if is_worded else shown,
        )
        for case in cases
    ]
