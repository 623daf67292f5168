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
    worded = [one for one in rewordings if one.action != "retire"]
    gone = [one for one in rewordings if one.action == "retire"]
    guard = _Guard(judge, access.criterion.scale, [*worded, *operations], gone)
    without_new, calls = frozenset(new_episodes), io.usage.chat_calls
    chosen = await choose_cases(io, access, guard.operations, cases)
    guard.standing = await access.guidelines(io)
    tell(0, len(chosen))

    async def agreeing(
        cases: Sequence[Case], guidelines: list[Guideline], without: frozenset[str] = frozenset()
    ) -> tuple[list[Case], list[tuple[Case, Value]]]:
        """Judge cases; returns those that agree with their experts, and the others as judged."""
        judging = [guard.judged(case, guidelines, without) for case in cases]
        verdicts = list(zip(cases, await io.gather(judging, limit), strict=True))
        agreed = [case for case, got in verdicts if guard.agrees(case, got)]
        return agreed, [(case, got) for case, got in verdicts if not guard.agrees(case, got)]

    agreed, others = await agreeing(chosen, [*before], without_new)
    disagreed = [case for case, _ in others]
    while True:
        everything = guard.begin()
        _, turned = await agreeing(agreed, everything)
        tell(len(chosen) - len(turned), len(chosen))
        if not turned:
            break
        culprits: list[int | None] = await io.gather(
            [guard.culprit(case) for case, _ in turned], limit
        )
        found: dict[int, tuple[Case, Value]] = {}
        for (case, got), place in zip(turned, culprits, strict=True):
            if place is None:
                guard.turned_by_episodes.append(case.example_id)
                agreed.remove(case)
            else:
                found.setdefault(place, (case, got))
        if not guard.operations:
            break
        guard.drop(found, rewordings)
    newly, _ = await agreeing(disagreed, everything)
    tell(len(chosen), len(chosen))
    kept = [one for one in guard.operations if one not in rewordings]
    again = [*guard.gone, *(one for one in guard.operations if one in rewordings)]
    seen = Replay(
        cases=len(chosen),
        agreed_before=len(agreed) + len(guard.turned_by_episodes),
        agree_after=len(agreed),
        newly_agree=len(newly),
        chat_calls=io.usage.chat_calls - calls,
        broken=guard.broken,
        turned_by_episodes=guard.turned_by_episodes,
    )
    return kept, again, seen


@dataclass
class _Guard:
    """The operations as they are after what was found so far."""

    judge: Judging
    scale: Scale
    operations: list[GuidelineOperation]
    gone: list[GuidelineOperation]
    """What takes away guidelines that rest on what was taken back, whatever turns."""
    standing: list[Guideline] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    """The new guidelines that do not stand when all is done: they can break nothing."""
    broken: list[BrokenCase] = field(default_factory=list)
    turned_by_episodes: list[str] = field(default_factory=list)

    def begin(self) -> list[Guideline]:
        """Return what the judge would be given if all operations were committed."""
        added = {
            one.guideline_id or guideline_id(one.text or "")
            for one in self.operations
            if one.action == "add"
        }
        self.lost = set()
        after = {one.id for one in self.with_first(len(self.operations))}
        self.lost = added - {one.id for one in self.standing} - after
        return self.with_first(len(self.operations))

    def with_first(self, count: int) -> list[Guideline]:
        """Return what the judge would be given if the first operations were committed."""
        given = applied(self.standing, [*self.gone, *self.operations[:count]])
        given.sort(key=lambda one: (one.position, one.id))
        return [one for one in given if one.id not in self.lost]

    async def judged(
        self, case: Case, guidelines: list[Guideline], without: frozenset[str] = frozenset()
    ) -> Value:
        """Judge a case as if its own episodes were not there, nor some others."""
        own = frozenset(episode.id for episode in case.episodes)
        return await self.judge(case.example, guidelines, own | without)

    def agrees(self, case: Case, got: Value) -> bool:
        """Tell whether a verdict agrees with the experts."""
        return agree(self.scale, got, case.expected)

    async def culprit(self, case: Case) -> int | None:
        """Find the operation at which a case turns; None if it is turned by none of them."""
        right, wrong = 0, len(self.operations)
        if not wrong or not self.agrees(case, await self.judged(case, self.with_first(0))):
            return None
        while wrong - right > 1:
            middle = (right + wrong) // 2
            if self.agrees(case, await self.judged(case, self.with_first(middle))):
                right = middle
            else:
                wrong = middle
        return wrong - 1

    def drop(
        self, found: Mapping[int, tuple[Case, Value]], rewordings: Sequence[GuidelineOperation]
    ) -> None:
        """Drop the operations that turned a case; with its new wording a guideline goes."""
        texts = {one.id: one.text for one in self.standing}
        for place, (case, got) in sorted(found.items()):
            operation, target = self.operations[place], self.operations[place].guideline_id
            if operation in rewordings:
                self.gone.append(GuidelineOperation(action="retire", guideline_id=target))
            is_worded = operation.action in ("add", "revise") and operation.text
            shown = f"({operation.action}) {texts.get(target or '', target)}"
            self.broken.append(
                BrokenCase(
                    example_id=case.example_id,
                    episode_ids=[episode.id for episode in case.episodes],
                    expected=case.expected,
                    got=got,
                    guideline=operation.text or "" if is_worded else shown,
                )
            )
        self.operations = [one for place, one in enumerate(self.operations) if place not in found]
