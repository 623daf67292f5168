"""Seen cases judged again, so that no guideline is committed that breaks what worked.

A change of the guidelines is a list of operations. A case that turns against its expert with all
of them, and not with none, turns at one of them: halving the list finds it in few judgments. That
operation is narrowed once, else dropped, until no case turns any more.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.agreement import agree
from memalign_graph.alignment.cases import Case, choose_cases
from memalign_graph.alignment.drafts import ask_once
from memalign_graph.alignment.report import BrokenCase, Replay
from memalign_graph.alignment.seen import SeenJudge, judge_seen
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.learning import GuidelineOperation, apply_operations, guideline_id
from memalign_graph.models import Metered, with_schema
from memalign_graph.prompts.narrow import narrow_prompt, narrow_schema, read_narrowed
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Guideline

DEFAULT_REPLAY_CASES = 20
"""How many seen cases are judged again at most, unless told otherwise."""


@dataclass(frozen=True)
class Judge(SeenJudge):
    """The same, with who mends what it breaks."""

    distiller: BaseChatModel
    """The model that narrows guidelines."""

    limit: int
    """How many judgments may be under way at a time."""


@dataclass
class _Guard:
    """The operations as they are after what was found so far."""

    operations: list[GuidelineOperation]
    standing: dict[str, str] = field(default_factory=dict)
    """The wordings of the guidelines that are there, by id."""
    narrowed: set[str] = field(default_factory=set)
    """The wordings that came of narrowing: none is narrowed twice."""
    broken: list[BrokenCase] = field(default_factory=list)
    turned_by_episodes: list[str] = field(default_factory=list)


async def replay(
    io: IO,
    access: MemoryAccess,
    judge: Judge,
    operations: Sequence[GuidelineOperation],
    *,
    before: Sequence[Guideline],
    new_episodes: Iterable[str],
    cases: int,
    tell: Callable[[int, int], None],
) -> tuple[list[GuidelineOperation], Replay]:
    """Judge seen cases with what operations would make of the memory, and mend what breaks."""
    metered = Metered(io)
    kept, seen = await _replay(
        metered,
        access,
        judge,
        _Guard(list(operations)),
        before=[one for one in before if one.status == "standing"],
        new_episodes=frozenset(new_episodes),
        cases=cases,
        tell=tell,
    )
    return kept, seen.model_copy(update={"chat_calls": metered.usage.chat_calls})


async def _replay(
    io: IO,
    access: MemoryAccess,
    judge: Judge,
    guard: _Guard,
    *,
    before: list[Guideline],
    new_episodes: frozenset[str],
    cases: int,
    tell: Callable[[int, int], None],
) -> tuple[list[GuidelineOperation], Replay]:
    chosen = await choose_cases(io, access, guard.operations, cases)
    standing = await access.every_guideline(io)
    guard.standing = {one.id: one.text for one in standing}
    tell(0, len(chosen))

    lost: set[str] = set()

    def with_first(count: int) -> list[Guideline]:
        given = _candidate(standing, guard.operations[:count])
        return [one for one in given if one.id not in lost]

    async def judged(case: Case, guidelines: list[Guideline], without: frozenset[str]) -> Value:
        own = {one.id for one in case.episodes}
        example = case.episodes[0].example
        got = await judge_seen(io, access, judge, example, guidelines, own | without)
        return got.value

    first: list[Value] = await io.gather(
        [judged(case, before, new_episodes) for case in chosen], judge.limit
    )
    scale = access.criterion.scale
    agreed = [
        case for case, got in zip(chosen, first, strict=True) if agree(scale, got, case.expected)
    ]
    disagreed = [case for case in chosen if case not in agreed]
    while True:
        # What the whole list supersedes again never comes to stand, and can break nothing.
        lost = _superseded_again(standing, guard.operations)
        everything = with_first(len(guard.operations))
        verdicts: list[Value] = await io.gather(
            [judged(case, everything, frozenset()) for case in agreed], judge.limit
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
            judge.limit,
        )
        found: dict[int, tuple[Case, Value]] = {}
        for (case, got), place in zip(turned, culprits, strict=True):
            if place is None:
                guard.turned_by_episodes.append(case.example_id)
                agreed.remove(case)
            else:
                found.setdefault(place, (case, got))
        await _mend(io, access, judge, guard, found)
    after: list[Value] = await io.gather(
        [judged(case, everything, frozenset()) for case in disagreed], judge.limit
    )
    newly = sum(
        agree(scale, got, case.expected) for case, got in zip(disagreed, after, strict=True)
    )
    tell(len(chosen), len(chosen))
    return guard.operations, Replay(
        cases=len(chosen),
        agreed_before=len(agreed) + len(guard.turned_by_episodes),
        agree_after=len(agreed),
        newly_agree=newly,
        chat_calls=0,
        broken=guard.broken,
        turned_by_episodes=guard.turned_by_episodes,
    )


def _superseded_again(
    standing: Sequence[Guideline], operations: Sequence[GuidelineOperation]
) -> set[str]:
    """Return the new guidelines that do not stand when all operations are done."""
    known = {one.id for one in standing if one.status == "standing"}
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
    live = {key for one in operations for key in one.episode_ids}
    now = datetime.now(UTC)
    position = max((one.position for one in standing), default=0) + 1
    changed, _ = apply_operations(standing, operations, live=live, now=now, position=position)
    after = {**{one.id: one for one in standing}, **changed}
    kept = [one for one in after.values() if one is not None and one.status == "standing"]
    return sorted(kept, key=lambda one: (one.position, one.id))


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


async def _mend(
    io: IO,
    access: MemoryAccess,
    judge: Judge,
    guard: _Guard,
    found: dict[int, tuple[Case, Value]],
) -> None:
    """Narrow or drop the operations that turned a case."""
    kept: list[GuidelineOperation] = []
    renamed: dict[str, str] = {}
    for place, operation in enumerate(guard.operations):
        if place not in found:
            kept.append(operation)
            continue
        case, got = found[place]
        narrower = None
        words = operation.action in ("add", "revise") and bool(operation.text)
        if words and operation.text not in guard.narrowed:
            narrower = await _narrow(io, access, judge, operation, case, got)
        if narrower is not None:
            guard.narrowed.add(narrower.text or "")
            renamed |= _new_name(operation, narrower)
            kept.append(narrower)
        elif operation.before == "":
            # A rewording: the guideline has lost its words for good.
            kept.append(GuidelineOperation(action="retire", guideline_id=operation.guideline_id))
        elif (
            operation.action == "retire" and guard.standing.get(operation.guideline_id or "") == ""
        ):
            # It goes all the same; what comes back with it is what turned the case.
            kept.append(operation.model_copy(update={"alone": True}))
        guard.broken.append(
            BrokenCase(
                example_id=case.example_id,
                episode_ids=[one.id for one in case.episodes],
                expected=case.expected,
                got=got,
                guideline=_shown(operation, guard.standing),
                outcome="dropped" if narrower is None else "narrowed",
                narrowed_to=None if narrower is None else narrower.text,
            )
        )
    guard.operations = [_renamed(one, renamed) for one in kept]


def _renamed(operation: GuidelineOperation, names: Mapping[str, str]) -> GuidelineOperation:
    """Follow a new guideline to the id it has when it is narrowed."""
    update = {
        field: names[key]
        for field in ("guideline_id", "superseded_by")
        if (key := getattr(operation, field)) in names
    }
    return operation.model_copy(update=update) if update else operation


async def _narrow(
    io: IO,
    access: MemoryAccess,
    judge: Judge,
    operation: GuidelineOperation,
    case: Case,
    got: Value,
) -> GuidelineOperation | None:
    sources = await access.episodes(io, operation.episode_ids)
    messages = narrow_prompt(
        access.criterion,
        operation.text or "",
        sources=list(sources.values()),
        broken=case.episodes,
        got=got,
    )

    def read(answer: dict[str, Any], _last: bool) -> str | None:  # noqa: FBT001 - as `ask` calls it
        return read_narrowed(answer)

    bound = with_schema(judge.distiller, narrow_schema())
    text = await ask_once(io, access, bound, messages, read, purpose="narrow a guideline")
    if text is None or text == operation.text:
        return None
    update = {"text": text}
    if operation.action == "add":
        update["guideline_id"] = guideline_id(text)
    return operation.model_copy(update=update)


def _new_name(operation: GuidelineOperation, narrower: GuidelineOperation) -> dict[str, str]:
    """Say under which id a new guideline stands once it is narrowed."""
    if operation.action != "add" or narrower.guideline_id is None:
        return {}
    return {operation.guideline_id or guideline_id(operation.text or ""): narrower.guideline_id}


def _shown(operation: GuidelineOperation, standing: Mapping[str, str]) -> str:
    if operation.action in ("add", "revise") and operation.text:
        return operation.text
    target = standing.get(operation.guideline_id or "", operation.guideline_id)
    return f"({operation.action}) {target}"
