"""What an expert's answer would do, told before it is final: nothing is stored here."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

from memalign_graph.agreement import consensus, value_or_none, values_agree
from memalign_graph.alignment.distill import distill_episodes
from memalign_graph.errors import EmbeddingError
from memalign_graph.evidence.cases import EvidenceCase
from memalign_graph.evidence.deciding import current_evidence_model, fit, off_loop
from memalign_graph.evidence.evidence_model import MIN_CASES
from memalign_graph.evidence.verdicts import RawVerdict
from memalign_graph.identity import episode_id
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import index_missing, key_of
from memalign_graph.memory.episode_row import EpisodeRow
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.models import BaseChatModel
from memalign_graph.prompts.fences import headline
from memalign_graph.review.forms import shown_value
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Decide, Episode, Example, Feedback, Judgment, stored_example

Shown = dict[str, Any]  # what a template of the page shows
_TURNS, _NEAR, _TITLE_CHARS = 10, 30, 120
_NO_VALUE = "An answer without a value turns no case at once; the rule that comes of it may."
_NO_VECTOR = "This case was never compared with others, so it is not known which are like it."
_FEW = "Too few cases have an expert's value to tell which would turn: {} of the {} it takes."
_UNUSED = (
    "Like cases do not decide here: so far they tell no more of the experts' values than the "
    "judge does by itself, so no settled case would turn."
)


def title_of(row: EpisodeRow) -> str:
    """Return the first words of what was judged."""
    return headline(row.content["example"]["outputs"], _TITLE_CHARS)


def word_of(row: EpisodeRow, scale: Scale) -> Shown:
    """Return what an expert said."""
    said = {name: row.content.get(name) for name in ("author", "rationale")}
    return {**said, "value": None if row.value is None else shown_value(scale, row.value)}


def _others(
    access: MemoryAccess, example: Example, author: str | None
) -> list[tuple[EpisodeRow, Value]]:
    """Return what others said of this case, or of one that reads the same, oldest first."""
    own, scale = episode_id(example.id, author, None), access.criterion.scale
    rows = sorted(
        access.view.rows_for_vector(key_of(access, example)), key=lambda row: row.given_at
    )
    valued = [(row, value_or_none(row.value, scale)) for row in rows if row.id != own]
    return [(row, value) for row, value in valued if value is not None]


async def others_on(
    io: IO, access: MemoryAccess, example: Example, value: Value | None, author: str | None
) -> list[Shown]:
    """Return the words of other experts on the very same case whose value differs."""
    await access.refresh(io)
    scale, others = access.criterion.scale, _others(access, example, author)
    return [
        word_of(row, scale)
        for row, other in others
        if row.example_id == example.id
        and value is not None
        and not values_agree(scale, other, value)
    ]


async def values_changed_by(
    io: IO,
    access: MemoryAccess,
    example: Example,
    value: Value | None,
    vector: Vector | None,
    *,
    author: str | None = None,
    judgment: Judgment | None = None,
    decide: Decide = "auto",
) -> tuple[list[Shown], str | None]:
    """Tell which settled cases would be estimated otherwise; also why that is not known."""
    scale, key = access.criterion.scale, key_of(access, example)
    try:
        judge_key = None if judgment is None else judgment.judge_key
        model = await current_evidence_model(io, access, judge_key=judge_key)
        vector = access.view.vectors([key]).get(key, vector)
        access.view.index.check([] if vector is None else [vector])
    except EmbeddingError as error:
        return [], f"Which cases would turn is not known. {error}"
    if value is None:
        return [], _NO_VALUE
    if len(model.cases) < MIN_CASES:
        return [], _FEW.format(len(model.cases), MIN_CASES)
    if vector is None:
        return [], _NO_VECTOR
    others = _others(access, example, author)
    values = [*(other for row, other in others if row.example_id == example.id), value]
    known = next((case for case in model.cases if case.example_id == example.id), None)
    verdict, checks = (known.verdict, known.checks) if known else (None, {})
    if verdict is None and judgment is not None:
        verdict = RawVerdict(judgment.verdict, judgment.probabilities)
    case = EvidenceCase(
        vector_key=key,
        vector=vector,
        example_id=example.id,
        episode_ids=[],
        expert_values=values,
        value=consensus(values, scale),
        verdict=verdict,
        judged_at=datetime.now(UTC),
        checks=checks,
    )
    if model.needs_fit(decide):
        await fit(io, model)
    if not model.decides(decide):
        return [], _UNUSED
    changes = (await off_loop(io, partial(model.values_changed_by, case)))[:_TURNS]
    turns: list[Shown] = []
    for settled, before, after in changes:
        turn = {"before": before, "after": after, "expert": settled.value}
        is_right, was_right = (values_agree(scale, it, settled.value) for it in (after, before))
        becomes = "right" if is_right else "wrong" if was_right else "neither"
        rows = access.view.rows_for_vector(settled.vector_key)
        title = title_of(next(row for row in rows if row.example_id == settled.example_id))
        shown = {name: shown_value(scale, it) for name, it in turn.items()}
        turns.append({"title": title, "becomes": becomes, **shown})
    return turns, None


async def rules_from(
    io: IO, access: MemoryAccess, chat: BaseChatModel, feedback: Feedback
) -> list[Shown]:
    """Ask a model which rules come of an answer alone, beside those that stand."""
    if feedback.agrees:
        return []
    standing = await access.guidelines(io)
    texts = {guideline.id: guideline.text for guideline in standing}
    episode = Episode.from_feedback(feedback)
    result = await distill_episodes(io, access, chat, [episode], standing)
    rules: list[Shown] = []
    for rule in result.operations:
        goes = rule.action == "retire"  # with what holds in its place, if anything does
        if goes:
            gone = texts[str(rule.guideline_id)]
            rules.append({"action": "retire", "text": gone, "question": None})
        if rule.text is not None:
            action = "add" if goes else rule.action
            rules.append({"action": action, "text": rule.text, "question": rule.question})
    return rules


async def nearest_to(
    io: IO, access: MemoryAccess, example: Example, vector: Vector | None
) -> Shown | None:
    """Find the nearest other case that an expert valued, with the newest word on it."""
    view, scale = await access.refresh(io), access.criterion.scale
    await index_missing(io, access, view)
    own = key_of(access, example)
    vector = view.vectors([own]).get(own, vector)
    found = [] if vector is None else view.index.search(vector, _NEAR)
    for key, similarity in found:
        others = [row for row in view.rows_for_vector(key) if row.example_id != example.id]
        rows = [row for row in others if value_or_none(row.value, scale) is not None]
        if rows:
            newest = max(rows, key=lambda row: (row.given_at, row.id))
            near = stored_example(newest.content["example"])
            return {"similarity": min(similarity, 1.0), **word_of(newest, scale), "example": near}
    return None
