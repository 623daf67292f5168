"""Write guidelines: by hand, and what models returned, with check questions and answers to them."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from memalign_graph.errors import InvalidInputError, show_value
from memalign_graph.identity import digest
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.facts import GuidelineRevision, GuidelineTombstone, filter_answers
from memalign_graph.memory.guidelines import (
    Byline,
    GuidelineOperation,
    GuidelineTable,
    check_guideline_text,
    check_name,
    guideline_with_text,
    hashes_of,
    next_position,
    normalize_text,
)
from memalign_graph.memory.purge import write_fact
from memalign_graph.memory.view import MemoryView
from memalign_graph.types import Guideline


async def add_guideline(
    io: IO, access: MemoryAccess, text: str, *, author: str | None
) -> Guideline:
    """Add a guideline by hand; edits the active one with the same text, if it was distilled."""
    text = check_guideline_text(text)
    author = check_name(author, "author")
    view = await access.refresh(io)
    same = guideline_with_text(view.guidelines, text)
    if same is not None:
        if same.origin == "expert":
            return same
        return await edit_guideline(io, access, same.id, text, author=author)
    now = datetime.now(UTC)
    guideline = Guideline(
        id=digest(["guideline", text, now.isoformat()]),
        text=text,
        origin="expert",
        author=author,
        position=next_position(view.guidelines),
        created_at=now,
        updated_at=now,
    )
    change = {"guidelines": [GuidelineRevision.of(guideline, {})]}
    await write_fact(io, access, view.purges(), "add_guideline", change, author=author)
    return guideline


async def edit_guideline(
    io: IO, access: MemoryAccess, guideline_id: str, text: str, *, author: str | None
) -> Guideline:
    """Change a guideline's text by hand; it keeps its id, position and sources."""
    text = check_guideline_text(text)
    author = check_name(author, "author")
    view = await access.refresh(io)
    purges, (_, guidelines, revisions) = view.purges(), view.current
    guideline = _guideline(access, guidelines, guideline_id)
    if guideline.text == text and guideline.origin == "expert":
        return guideline
    same = guideline_with_text(guidelines, text, except_id=guideline_id)
    if same is not None:
        raise InvalidInputError(f"text: guideline {same.id!r} already has this text.")
    after = guideline.model_copy(
        update={
            "text": text,
            "question": guideline.question if guideline.text == text else None,
            "status": "standing",
            "origin": "expert",
            "author": author,
            "updated_at": datetime.now(UTC),
        }
    )
    change = {"guidelines": [GuidelineRevision.of(after, revisions[guideline_id].sources)]}
    await write_fact(io, access, purges, "edit_guideline", change, author=author)
    return after


async def remove_guideline(
    io: IO, access: MemoryAccess, guideline_id: str, *, author: str | None
) -> Guideline:
    author = check_name(author, "author")
    view = await access.refresh(io)
    guideline = _guideline(access, view.guidelines, guideline_id)
    change = {"retired": [GuidelineTombstone(id=guideline_id, is_settled=True)]}
    await write_fact(io, access, view.purges(), "remove_guideline", change, author=author)
    return guideline


def _guideline(access: MemoryAccess, guidelines: Sequence[Guideline], key: str) -> Guideline:
    for guideline in guidelines:
        if guideline.id == key:
            return guideline
    raise InvalidInputError(
        f"guideline_id: {access.criterion.name!r} has no guideline {show_value(key)}. "
        "`guidelines()` lists them."
    )


OUTWEIGHED = (
    "{!r} stays although other feedback would retire or reword it, because it is newer, or because "
    "at least as many other experts support it. Edit or remove it if that is wrong."
)

_CHANGED = (
    "{!r} stays: its text, or the guideline that should replace it, was changed or removed after "
    "the two were compared. Call `consolidate()` to compare them again."
)


def bylines_by_episode(view: MemoryView) -> dict[str, Byline]:
    """Return when each episode was given, and its author, or an id of the system it comes from."""
    return {
        row.id: (row.given_at, row.content.get("author") or row.content.get("feedback_id"))
        for row in view.rows()
    }


async def commit_lesson(
    io: IO,
    access: MemoryAccess,
    operations: Sequence[GuidelineOperation],
    read: Mapping[str, str],
    *,
    prompts: Sequence[Collection[str]] | None = None,
    author: str | None = None,
    is_redistilling: bool = False,
    skipped_episode_ids: Collection[str] = (),
    failed: Collection[str] = (),
    reason: str = "learn",
) -> dict[str, Any]:
    """Apply operations that a model proposed, and mark the feedback it read as distilled.

    A guideline that is newer than the feedback against it, or outweighs it, stays with a warning.
    `read` maps episode ids to the feedback hashes that the model read, `prompts` lists the episodes
    that shared a prompt, and `failed` has the ids of failed attempts, which count once.
    """
    view = await access.refresh(io)
    purges, episodes = view.purges(), view.episodes(read)
    same = {key for key, episode in episodes.items() if episode.word == read[key]}
    gone = read.keys() - same
    _, guidelines, revisions = view.current
    active = {guideline.id: guideline for guideline in guidelines}
    # A model that read purged feedback may repeat it in any operation.
    purged = bool(view.purges(gone - episodes.keys()))
    valid, left_pending = ([], same) if purged else valid_operations(operations, active, gone)
    distilled = same - left_pending - {*skipped_episode_ids}
    pending = {key for key in distilled if episodes[key].status == "pending"}
    table = GuidelineTable(
        active,
        usable_sources=distilled if is_redistilling else pending,
        bylines=bylines_by_episode(view) if valid and not is_redistilling else None,
        is_redistilling=is_redistilling,
    )
    for operation in valid:
        table.apply(operation)
    hashes = view.feedback_hashes()
    lesson: dict[str, Any] = {
        "read": {key: hashes[key] for key in sorted(pending)},
        "guidelines": [
            GuidelineRevision.of(
                guideline,
                hashes_of(guideline.episode_ids, hashes),
                replaces=None if guideline.id in table.retired else revisions.get(guideline.id),
                is_anew=is_redistilling and guideline.status == "standing",
                read_with=table.read_with.get(guideline.id),
            )
            for guideline in table.changed()
        ],
        "retired": table.retirements(hashes),
        "prompts": [sorted(prompt) for prompt in prompts or [read] if len(prompt) > 1],
        "failed": sorted(failed),
    }
    if any(lesson[name] for name in ("read", "guidelines", "retired", "failed")):
        view = await write_fact(io, access, purges, reason, lesson, author=author)
    # Without sources it is a decision about guidelines: no feedback stays pending instead.
    decided = {op.guideline_id or "": None for op in operations if not op.episode_ids}
    staying = [table.after[key].text for key in decided if key in table.after]
    return {
        "episode_ids": sorted(distilled),
        "guidelines": table.outcome,
        "memory_version": view.version,
        "warnings": [
            *map(OUTWEIGHED.format, table.outweighing.values()),
            *map(_CHANGED.format, staying),
        ],
    }


def valid_operations(
    operations: Sequence[GuidelineOperation], active: Mapping[str, Guideline], gone: set[str]
) -> tuple[list[GuidelineOperation], set[str]]:
    """Return the operations that still apply, and the episodes of the others.

    An operation does not apply if its feedback was forgotten or its guideline changed meanwhile.
    """
    valid: list[GuidelineOperation] = []
    left_pending: set[str] = set()
    texts = {normalize_text(guideline.text) for guideline in active.values()}
    reworded = {each.guideline_id: each.before for each in operations if each.action == "revise"}

    def is_changed(key: str | None, *known: str | None) -> bool:
        current = active.get(key or "")
        return current is not None and current.text not in (*known, reworded.get(key))

    for operation in operations:
        sources, text = {*operation.episode_ids}, operation.text
        is_lost = operation.before is not None and (
            is_changed(operation.guideline_id, operation.before, text)
            or is_changed(operation.superseded_by, operation.superseding_text)
            or (
                operation.action in ("add", "revise")
                and operation.guideline_id not in active
                and normalize_text(text or "") not in texts
            )
        )
        if sources & gone or is_lost:
            left_pending |= sources - gone
        else:
            valid.append(operation)
    return valid, left_pending


async def record_questions(io: IO, access: MemoryAccess, questions: Mapping[str, str]) -> None:
    """Store check questions by guideline text, for guidelines without one.

    An empty question means that the guideline cannot be asked.
    """
    view = await access.refresh(io)
    purges, now = view.purges(), datetime.now(UTC)
    _, guidelines, revisions = view.current
    asked = [
        GuidelineRevision.of(
            each.model_copy(update={"question": questions[each.text], "updated_at": now}),
            revisions[each.id].sources,
            replaces=revisions[each.id],
        )
        for each in guidelines
        if each.question is None and each.text in questions
    ]
    if asked:
        await write_fact(io, access, purges, "ask", {"guidelines": asked})


async def record_check_answers(
    io: IO, access: MemoryAccess, answers: Mapping[str, Mapping[str, float]]
) -> None:
    """Store answers to check questions on cases in memory, by `asked_id` and example id."""
    view = await access.refresh(io)
    purges, cases = view.purges(), {row.example_id for row in view.rows()}
    known = filter_answers(answers, cases.__contains__)
    if any(known.values()):
        await write_fact(io, access, purges, "check", {"answers": known})
