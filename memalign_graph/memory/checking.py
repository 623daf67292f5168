"""What memory keeps of checks: guidelines as questions, and how likely its cases meet them."""

from collections.abc import Mapping
from datetime import UTC, datetime

from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.facts import PURGE, Wording, unnamed


async def note_questions(io: IO, access: MemoryAccess, questions: Mapping[str, str]) -> None:
    """Keep questions for guidelines that have none, by their texts; empty ones can't be asked."""
    view = await access.refresh(io)
    purges, now = view.purges(), datetime.now(UTC)
    asked = [
        Wording.of(
            one.model_copy(update={"question": questions[one.text], "updated_at": now}),
            view.sources(one.id),
            replaces=one,
        )
        for one in view.guidelines
        if one.question is None and one.text in questions
    ]
    if not asked:
        return
    fact = await access.write(io, "ask", {"guidelines": asked})
    if (await access.refresh(io)).purges() - purges:
        # Purged meanwhile: what was asked may repeat it.
        worded = [wording.id for wording in asked]
        await access.write(io, PURGE, {"scrubbed": {fact.id: worded}})
        await access.overwrite(io, [fact.scrub(worded)])


async def note_answers(
    io: IO, access: MemoryAccess, answers: Mapping[str, Mapping[str, float]]
) -> None:
    """Keep how likely cases in memory meet guidelines, by `asked_id` and example id."""
    view = await access.refresh(io)
    purges, cases = view.purges(), {row.example_id for row in view.rows()}
    known = {asked: dict(found) for asked, found in answers.items()}
    for found in known.values():
        for gone in found.keys() - cases:
            del found[gone]
    if not any(known.values()):
        return
    fact = await access.write(io, "check", {"answers": known})
    view = await access.refresh(io)
    if view.purges() - purges:
        # Purged meanwhile.
        left = {row.example_id for row in view.rows()}
        unanswered = sorted(map(unnamed, cases - left))
        await access.write(io, PURGE, {"unanswered": unanswered})
        await access.overwrite(io, [fact.without_answers(unanswered)])
