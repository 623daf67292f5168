"""Guidelines written, reworded and taken away by hand."""

from datetime import UTC, datetime
from typing import Any

from memalign_graph.errors import InvalidInputError
from memalign_graph.identity import check_json, digest
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.items import Edit, check_name
from memalign_graph.memory.learning import plain_words
from memalign_graph.memory.records import clock
from memalign_graph.memory.rivals import edits_made, settle_rivals
from memalign_graph.memory.view import MemoryView
from memalign_graph.types import Guideline

MAX_GUIDELINE_CHARS = 2_000
"""The longest guideline, in characters."""


async def add_guideline(
    io: IO, access: MemoryAccess, text: str, *, author: str | None
) -> Guideline:
    """Write a guideline by hand; in words that stand already it is that guideline."""
    text = check_guideline_text(text)
    author = check_name(author, "author")
    view = await access.refresh(io)
    standing = await access.all_guidelines(io)
    words = plain_words(text)
    same = next((one for one in standing if plain_words(one.text) == words), None)
    if same is not None:
        return same
    now = datetime.now(UTC)
    position = clock.now_us()
    guideline = Guideline(
        id=digest(["guideline", text, position]),
        text=text,
        origin="expert",
        author=author,
        position=position,
        created_at=now,
        updated_at=now,
    )
    edits = [Edit("guidelines", None, guideline)]
    await _commit(io, access, view, edits, reason="add_guideline", author=author)
    return guideline


async def edit_guideline(
    io: IO, access: MemoryAccess, guideline_id: str, text: str, *, author: str | None
) -> Guideline:
    """Reword a guideline by hand; it keeps its id, place and sources, and is the expert's now."""
    text = check_guideline_text(text)
    author = check_name(author, "author")
    view = await access.refresh(io)
    guideline = await _guideline(io, access, guideline_id)
    if guideline.text == text and guideline.status == "standing":
        return guideline
    for other in await access.all_guidelines(io):
        if other.id != guideline_id and plain_words(other.text) == plain_words(text):
            raise InvalidInputError(f"text: these words already stand as guideline {other.id!r}.")
    after = guideline.model_copy(
        update={
            "text": text,
            "status": "standing",
            "superseded_by": None,
            "reason": None,
            "origin": "expert",
            "author": author,
            "updated_at": datetime.now(UTC),
        }
    )
    edits = [Edit("guidelines", guideline, after)]
    await _commit(io, access, view, edits, reason="edit_guideline", author=author)
    return after


async def remove_guideline(
    io: IO, access: MemoryAccess, guideline_id: str, *, author: str | None
) -> Guideline:
    """Take a guideline away; the episodes it came from stay."""
    view = await access.refresh(io)
    guideline = await _guideline(io, access, guideline_id)
    others = [one for one in await access.every_guideline(io) if one.superseded_by == guideline_id]
    edits = [
        Edit("guidelines", guideline, None),
        *(Edit("guidelines", one, _by_none(one)) for one in others),
    ]
    await _commit(io, access, view, edits, reason="remove_guideline", author=author)
    return guideline


def check_guideline_text(text: Any) -> str:
    """Check a guideline's text, and put it on one line."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidInputError("text: a guideline is a sentence, not empty.")
    if len(text) > MAX_GUIDELINE_CHARS:
        raise InvalidInputError(
            f"text: a guideline has at most {MAX_GUIDELINE_CHARS:,} characters: shorten it."
        )
    try:
        check_json(text, "text")
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
    return " ".join(text.split())


def _by_none(guideline: Guideline) -> Guideline:
    return guideline.model_copy(update={"superseded_by": None, "updated_at": datetime.now(UTC)})


async def _commit(
    io: IO,
    access: MemoryAccess,
    view: MemoryView,
    edits: list[Edit],
    *,
    reason: str,
    author: str | None,
) -> None:
    known = view.known_commits()
    commit = await access.commit(io, view, edits, reason=reason, author=author)
    await settle_rivals(io, access, commit, known, edits_made(edits), taken_back=set())


async def _guideline(io: IO, access: MemoryAccess, guideline_id: str) -> Guideline:
    for guideline in await access.every_guideline(io):
        if guideline.id == guideline_id:
            return guideline
    raise InvalidInputError(
        f"guideline_id: {guideline_id!r} names no guideline of {access.criterion.name!r}: "
        "`guidelines()` lists them."
    )
