"""What an answer would change before it is stored, and the nearest case to compare with."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from memalign_graph.agreement import consensus, value_or_none, values_agree
from memalign_graph.alignment.distill import distill_episodes
from memalign_graph.errors import EmbeddingError
from memalign_graph.evidence.cases import MIN_CASES, EvidenceCase, PastDecision
from memalign_graph.evidence.confidence import RawVerdict
from memalign_graph.evidence.deciding import current_evidence_model, fit, off_loop
from memalign_graph.io import ASYNC
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.checks import consensus_values
from memalign_graph.memory.guidelines import GuidelineTable
from memalign_graph.memory.index import Vector
from memalign_graph.memory.learning import bylines_by_episode
from memalign_graph.memory.memory_state import EpisodeRow
from memalign_graph.memory.recall import embed_once, index_missing, vector_key_of_example
from memalign_graph.models import BaseChatModel
from memalign_graph.review.blocks import arguments_of, sections_of, tool_call
from memalign_graph.review.dashboard import Shown, feedback_summary, newest_first, row_title
from memalign_graph.review.forms import CasePayload, shown_value
from memalign_graph.review.queue import ReviewQueue
from memalign_graph.scales import Value
from memalign_graph.types import Decide, Episode, Example, Feedback, stored_example

_MAX_CHANGES, _MAX_NEAR = 10, 30
_NO_VALUE = "An answer without a value changes no estimate now; the rule learned from it may."
_NO_VECTOR = "This case has no embedding, so it is not known which cases are like it."
_FEW = "Not known yet: {} cases have an expert's value, and it takes {}."
_UNUSED = (
    "None. The judge's verdicts decide here, because similar cases do not predict the experts' "
    "values better."
)


async def effect(
    queue: ReviewQueue, case: CasePayload, feedback_by_name: Mapping[str, Feedback]
) -> Shown:
    """Return who answered otherwise, and which settled cases an answer would change."""
    others, changes, unknown = list[Shown](), list[Shown](), None
    accesses = {name: queue.access(name, case["namespace"]) for name in feedback_by_name}
    vector = await _embed_case([*accesses.values()], case)
    for name, feedback in feedback_by_name.items():
        access, decide = accesses[name], queue.judges[name].mode
        others += conflicting_labels(access, feedback)
        more, unknown = await predicted_changes(access, feedback, vector, decide)
        changes += more
    return {"others": others, "changes": changes, "unknown": unknown}


async def rules(
    queue: ReviewQueue, case: CasePayload, feedback_by_name: Mapping[str, Feedback]
) -> list[Shown]:
    """Return the guidelines that would be learned from an answer."""
    proposals = list[Shown]()
    for name, feedback in feedback_by_name.items():
        access = queue.access(name, case["namespace"])
        proposals += await proposed_guidelines(access, queue.distill_model(name), feedback)
    return proposals


async def nearest(queue: ReviewQueue, case: CasePayload) -> Shown | None:
    """Return the nearest settled case of a case's first criterion, or the nearest approved call."""
    access = queue.access(next(iter(case["criteria"])), case["namespace"])
    example = Example.model_validate(case["example"])
    near = await nearest_case(access, example, await _embed_case([access], case))
    if near is None:
        return None
    other, call = near["example"].to_json(), tool_call(example.outputs)
    if call is None:
        return {**near, "sections": sections_of(other)}
    return {**near, "arguments": arguments_of(call, other["outputs"])}


async def _embed_case(accesses: Sequence[MemoryAccess], case: CasePayload) -> Vector | None:
    """Embed a case once for several criteria; None if that fails."""
    for access in accesses:
        await access.refresh(ASYNC)
    with suppress(EmbeddingError):  # the page then says that similar cases are not known
        return await embed_once(ASYNC, accesses, Example.model_validate(case["example"]))
    return None


def conflicting_labels(access: MemoryAccess, feedback: Feedback) -> list[Shown]:
    """Return what other experts answered to the same case, if their value differs."""
    scale, value = access.criterion.scale, feedback.value
    return [
        feedback_summary(row, scale)
        for row, other in _other_labels(access, feedback)
        if value is not None and not values_agree(scale, other, value)
    ]


def _other_labels(access: MemoryAccess, feedback: Feedback) -> list[tuple[EpisodeRow, Value]]:
    """Return the values that other experts gave the same case, oldest first."""
    example, scale = feedback.example, access.criterion.scale
    rows = access.view.rows_for_vector(vector_key_of_example(access, example))
    labels = [
        (row, value_or_none(row.value, scale))
        for row in sorted(rows, key=lambda row: row.given_at)
        if row.example_id == example.id and row.id != feedback.episode_id
    ]
    return [(row, value) for row, value in labels if value is not None]


async def predicted_changes(
    access: MemoryAccess, feedback: Feedback, vector: Vector | None, decide: Decide = "auto"
) -> tuple[list[Shown], str | None]:
    """Return the settled cases whose estimate would change, or why that is not known."""
    example, judgment, scale = feedback.example, feedback.judgment, access.criterion.scale
    key = vector_key_of_example(access, example)
    try:
        judge_key = None if judgment is None else judgment.judge_key
        model = await current_evidence_model(ASYNC, access, judge_key=judge_key)
        vector = access.view.vectors([key]).get(key, vector)
        access.view.index.check([] if vector is None else [vector])
    except EmbeddingError as error:
        return [], f"It is not known which cases would change. {error}"
    if feedback.value is None:
        return [], _NO_VALUE
    if len(model.cases) < MIN_CASES:
        return [], _FEW.format(len(model.cases), MIN_CASES)
    if vector is None:
        return [], _NO_VECTOR
    values = [*(other for _, other in _other_labels(access, feedback)), feedback.value]
    stored = next((case for case in model.cases if case.example_id == example.id), None)
    verdict = stored.decision.verdict if stored else None
    if verdict is None and judgment is not None:
        verdict = RawVerdict(judgment.verdict, judgment.probabilities)
    value = consensus(values, scale)
    case = EvidenceCase(
        vector_key=key,
        vector=vector,
        example_id=example.id,
        episode_ids=[],
        value=value,
        decisions=[PastDecision(value, verdict, datetime.now(UTC))],
    )
    if model.needs_fit(decide):
        await fit(ASYNC, model)
    if not model.decides(decide):
        return [], _UNUSED
    changed = await off_loop(ASYNC, partial(model.values_changed_by, case))
    return [_change(access, *change) for change in changed[:_MAX_CHANGES]], None


def _change(access: MemoryAccess, settled: EvidenceCase, before: Value, after: Value) -> Shown:
    scale, rows = access.criterion.scale, access.view.rows_for_vector(settled.vector_key)
    is_right, was_right = (values_agree(scale, value, settled.value) for value in (after, before))
    return {
        "title": row_title(next(row for row in rows if row.example_id == settled.example_id)),
        "before": shown_value(scale, before),
        "after": shown_value(scale, after),
        "expert": shown_value(scale, settled.value),
        "becomes": "right" if is_right else "wrong" if was_right else "neither",
    }


async def proposed_guidelines(
    access: MemoryAccess, model: BaseChatModel, feedback: Feedback
) -> list[Shown]:
    """Ask a model which changes to the guidelines this answer would lead to."""
    if feedback.agrees:
        return []
    active = {guideline.id: guideline for guideline in await access.guidelines(ASYNC)}
    episode = Episode.from_feedback(feedback)
    result = await distill_episodes(ASYNC, access, model, [episode], [*active.values()])
    byline = episode.given_at, feedback.author or feedback.id
    table = GuidelineTable(
        active,
        usable_sources={episode.id},
        bylines={**bylines_by_episode(access.view), episode.id: byline},
    )
    for operation in result.operations:
        table.apply(operation)
    questions = {key: guideline.question for key, guideline in table.after.items()}
    proposals: list[Shown] = []
    for change in table.outcome:
        key, action = change["guideline_id"], change["action"]
        if action == "add" and key in active:
            action = "support"
        proposals.append({"action": action, "text": change["text"], "question": questions.get(key)})
    return proposals


async def nearest_case(
    access: MemoryAccess, example: Example, vector: Vector | None
) -> Shown | None:
    """Return the nearest other labeled case; for a tool call, the nearest approved call."""
    view, scale = await access.refresh(ASYNC), access.criterion.scale
    await index_missing(ASYNC, access)
    own_key, call = vector_key_of_example(access, example), tool_call(example.outputs)
    vector = view.vectors([own_key]).get(own_key, vector)
    max_near = _MAX_NEAR if call is None else len(view.rows())
    matches = [] if vector is None else view.index.search(vector, max_near)
    agreed = {} if call is None else consensus_values(view, scale)

    def is_comparable(row: EpisodeRow) -> bool:
        value = value_or_none(row.value, scale)
        if value is None or row.example_id == example.id:
            return False
        if call is None:
            return True
        is_approved = value is True and agreed[row.example_id] is True
        other = tool_call(row.content["example"]["outputs"])
        return is_approved and other is not None and other["name"] == call["name"]

    for key, similarity in matches:
        if rows := newest_first(filter(is_comparable, view.rows_for_vector(key))):
            near = stored_example(rows[0].content["example"])
            summary = feedback_summary(rows[0], scale)
            return {"similarity": min(similarity, 1.0), **summary, "example": near}
    return None
