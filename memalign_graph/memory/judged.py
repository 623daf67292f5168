"""What a judge said of the cases in memory before an expert's word on them was known."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from memalign_graph.agreement import on_scale
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess, chunks
from memalign_graph.memory.changes import COMMIT_ITEMS
from memalign_graph.memory.episode_row import EpisodeRow
from memalign_graph.memory.items import Edit
from memalign_graph.memory.rivals import edits_made, settle_rivals
from memalign_graph.scales import Scale
from memalign_graph.types import Judgment


def unjudged_cases(rows: Sequence[EpisodeRow], scale: Scale) -> dict[str, list[str]]:
    """Find the cases that an expert valued and no judge has judged."""
    cases: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        cases.setdefault(row.example_id, []).append(row)
    return {
        key: [row.id for row in case]
        for key, case in cases.items()
        if any(on_scale(row.value, scale) is not None for row in case)
        and not any(row.judged and on_scale(row.judged.verdict, scale) is not None for row in case)
        and any(row.judged is None for row in case)
    }


async def note_judgments(io: IO, access: MemoryAccess, judgments: Mapping[str, Judgment]) -> None:
    """Keep judgments on the episodes of their cases, in one commit, but for very many."""
    view = await access.refresh(io)
    ids = [row.id for row in view.rows() if row.example_id in judgments and row.judged is None]
    for part in chunks(ids, COMMIT_ITEMS):
        view = await access.refresh(io)
        known = view.known_commits()
        there = await access.episodes(io, part)
        now = datetime.now(UTC)
        edits = [
            Edit(
                "episodes",
                one,
                one.model_copy(update={"judgment": judgments[one.example_id], "updated_at": now}),
            )
            for one in there.values()
            if one.judgment is None
        ]
        commit = await access.commit(io, view, edits, reason="judge cases", author=None)
        await settle_rivals(
            io, access, commit, known, edits_made(edits), taken_back=set(), keeps_status=True
        )
