"""Seen cases judged again, so that no guideline is committed that breaks what worked.

A change of the guidelines is a list of operations. A case that turns against its expert with all
of them, and not with none, turns at one of them: halving the list finds it in few judgments. That
operation is dropped, until no case turns any more.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memalign_graph.agreement import agree
from memalign_graph.alignment.cases import Case, choose_cases
from memalign_graph.alignment.report import BrokenCase, Replay
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.learning import GuidelineOperation, applied, guideline_id
from memalign_graph.models import Metered
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Example, Guideline

Judging = Callable[[Example, list[Guideline], frozenset[str]], Coroutine[Any, Any, Value]]
"""Judges an example with some guidelines, as if some episodes were not there."""


@dataclass
class _Guard:
    """The operations as they are after what was found so far."""

    operations: list[GuidelineOperation]
    standing: dict[str, str] = field(default_factory=dict)
    """The wordings of the guidelines that are there, by id."""
    gone: list[GuidelineOperation] = field(default_factory=list)
    """What takes away guidelines that rest on what was taken back, whatever turns."""
    broken: list[BrokenCase] = field(default_factory=list)
    turned_by_episodes: list[str] = field(default_factory=list)


async def replay(
    io: Metered,
    access: MemoryAccess,
    judge: Judging,
    operations: Sequence[GuidelineOperation],
    rewordings: Sequence[GuidelineOperation],
    *,
    before: Sequence[Guideline],
    new_episodes: Iterable[str],
    cases: int,
    limit: int,
    tell: Callable[[int, int], None],
) -> tuple[list[GuidelineOperation], list[GuidelineOperation], Replay]:
    """Judge seen cases with what operations would make of the memory, and drop what breaks."""
    guard = _Guard(
        [*(one for one in rewordings if one.action != "retire"), *operations],
        gone=[one for one in rewordings if one.action == "retire"],
    )
    without_new, calls = frozenset(new_episodes), io.usage.chat_calls
    chosen = await choose_cases(io, access, guard.operations, cases)
    standing = await access.guidelines(io)
    guard.standing = {one.id: one.text for one in standing}
    tell(0, len(chosen))

    lost: set[str] = set()

    def with_first(count: int) -> list[Guideline]:
        given = _candidate(standing, [*guard.gone, *guard.operations[:count]])
        return [one for one in given if one.id not in lost]

    async def judged(case: Case, guidelines: list[Guideline], without: frozenset[str]) -> Value:
        own = frozenset(episode.id for episode in case.episodes)
        return await judge(case.example, guidelines, own | without)

    first: list[Value] = await io.gather(
        [judged(case, [*before], without_new) for case in chosen], limit
    )
    scale = access.criterion.scale
    agreed = [
        case for case, got in zip(chosen, first, strict=True) if agree(scale, got, case.expected)
    ]
    disagreed = [case for case in chosen if case not in agreed]
    while True:
        # What the whole list retires again never comes to stand, and can break nothing.
        lost = _gone_again(standing, [*guard.gone, *guard.operations])
        everything = with_first(len(guard.operations))
        verdicts: list[Value] = await io.gather(
            [judged(case, everything, frozenset()) for case in agreed], limit
        )
        turned = [
            (case, got)
            for case, got in zip(agreed, verdicts, strict=True)
            if not agree(scale, got, case.expected)
        ]
        tell(len(chosen) - len(turned), len(chosen))
        if not turned:
            break
        if not guard.operations:
            guard.turned_by_episodes += [case.example_id for case, _ in turned]
            agreed = [case for case in agreed if case not in [one for one, _ in turned]]
            break
        culprits: list[int | None] = await io.gather(
            [_culprit(guard, case, with_first, judged, scale) for case, _ in turned],
            limit,
        )
        found: dict[int, tuple[Case, Value]] = {}
        for (case, got), place in zip(turned, culprits, strict=True):
            if place is None:
                guard.turned_by_episodes.append(case.example_id)
                agreed.remove(case)
            else:
                found.setdefault(place, (case, got))
        _drop(guard, found, rewordings)
    after: list[Value] = await io.gather(
        [judged(case, everything, frozenset()) for case in disagreed], limit
    )
    newly = sum(
        agree(scale, got, case.expected) for case, got in zip(disagreed, after, strict=True)
    )
    tell(len(chosen), len(chosen))
    kept = [one for one in guard.operations if one not in rewordings]
    again = [*guard.gone, *(one for one in guard.operations if one in rewordings)]
    seen = Replay(
        cases=len(chosen),
        agreed_before=len(agreed) + len(guard.turned_by_episodes),
        agree_after=len(agreed),
        newly_agree=newly,
        chat_calls=io.usage.chat_calls - calls,
        broken=guard.broken,
        turned_by_episodes=guard.turned_by_episodes,
    )
    return kept, again, seen


def _gone_again(
    standing: Sequence[Guideline], operations: Sequence[GuidelineOperation]
) -> set[str]:
    """Return the new guidelines that do not stand when all operations are done."""
    known = {one.id for one in standing}
    after = {one.id for one in _candidate(standing, operations)}
    added = {
        one.guideline_id or guideline_id(one.text or "")
        for one in operations
        if one.action == "add"
    }
    return added - known - after


def _candidate(
    standing: Sequence[Guideline], operations: Sequence[GuidelineOperation]
) -> list[Guideline]:
    """Return what the judge would be given if some operations were committed."""
    return sorted(applied(standing, operations), key=lambda one: (one.position, one.id))


async def _culprit(
    guard: _Guard,
    case: Case,
    with_first: Callable[[int], list[Guideline]],
    judged: Callable[[Case, list[Guideline], frozenset[str]], Coroutine[Any, Any, Value]],
    scale: Scale,
) -> int | None:
    """Find the operation at which a case turns; None if it is turned by none of them."""
    right, wrong = 0, len(guard.operations)
    got = await judged(case, with_first(right), frozenset())
    if not agree(scale, got, case.expected):
        return None
    while wrong - right > 1:
        middle = (right + wrong) // 2
        got = await judged(case, with_first(middle), frozenset())
        if agree(scale, got, case.expected):
            right = middle
        else:
            wrong = middle
    return wrong - 1


def _drop(
    guard: _Guard,
    found: Mapping[int, tuple[Case, Value]],
    rewordings: Sequence[GuidelineOperation],
) -> None:
    """Drop the operations that turned a case; with its new wording a guideline goes."""
    kept: list[GuidelineOperation] = []
    for place, operation in enumerate(guard.operations):
        if place not in found:
            kept.append(operation)
            continue
        case, got = found[place]
        if operation in rewordings:
            target = operation.guideline_id
            guard.gone.append(GuidelineOperation(action="retire", guideline_id=target))
        guard.broken.append(
            BrokenCase(
                example_id=case.example_id,
                episode_ids=[episode.id for episode in case.episodes],
                expected=case.expected,
                got=got,
                guideline=_shown(operation, guard.standing),
            )
        )
    guard.operations = kept


def _shown(operation: GuidelineOperation, standing: Mapping[str, str]) -> str:
    if operation.action in ("add", "revise") and operation.text:
        return operation.text
    target = standing.get(operation.guideline_id or "", operation.guideline_id)
    return f"({operation.action}) {target}"
