"""What the pages show: the rules, answers and agreement of a memory, and what an answer changes."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import combinations
from typing import Any

from memalign_graph.agreement import consensus, value_or_none, values_agree
from memalign_graph.alignment.distill import distill_episodes
from memalign_graph.errors import EmbeddingError
from memalign_graph.evidence.cases import MIN_CASES, EvidenceCase
from memalign_graph.evidence.confidence import RawVerdict
from memalign_graph.evidence.deciding import current_evidence_model, fit, off_loop
from memalign_graph.io import ASYNC
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.checks import consensus_values
from memalign_graph.memory.guidelines import GuidelineTable
from memalign_graph.memory.history import Commit, history
from memalign_graph.memory.index import Vector
from memalign_graph.memory.judgments import utc_now
from memalign_graph.memory.learning import bylines_by_episode
from memalign_graph.memory.memory_state import EpisodeRow
from memalign_graph.memory.recall import embed_once, index_missing, vector_key_of_example
from memalign_graph.memory.reports import pass_rate, review_report
from memalign_graph.models import BaseChatModel
from memalign_graph.review.blocks import tool_call
from memalign_graph.review.forms import answer_fields, shown_value
from memalign_graph.review.tasks import title_of
from memalign_graph.scales import Boolean, Numeric, Scale, Value
from memalign_graph.types import Decide, Episode, Example, Feedback, stored_example

Shown = dict[str, Any]
"""What a template shows."""
_MAX_COMMITS, _MAX_SOURCES, _MAX_DISPUTES, _MAX_ANSWERS, _WEEKS, _DAYS = 30, 50, 50, 100, 12, 14
_BY_JUDGE = ("learn", "align", "redistill", "consolidate", "ask", "check", "judge cases")
_ACTIONS = dict.fromkeys(_BY_JUDGE, "learned") | {
    "remember": "answered",
    "revise": "changed an answer",
    "forget": "took back answers",
    "purge": "erased answers",
    "add_guideline": "wrote a rule",
    "edit_guideline": "reworded a rule",
    "remove_guideline": "removed a rule",
    "rollback": "returned to an earlier version",
}
_MAX_CHANGES, _MAX_NEAR = 10, 30
_NO_VALUE = "An answer without a value changes no estimate now; the rule learned from it may."
_NO_VECTOR = "This case has no embedding, so it is not known which cases are like it."
_FEW = "Not known yet: {} cases have an expert's value, and it takes {}."
_UNUSED = (
    "None. The judge's verdicts decide here, because similar cases do not predict the experts' "
    "values better."
)


async def guideline_overview(access: MemoryAccess, author: str | None) -> Shown:
    """Return the guidelines with their sources, the cases in dispute, and the last commits."""
    guidelines, scale = await access.guidelines(ASYNC), access.criterion.scale
    rows = {row.id: row for row in access.view.rows()}

    def is_own(row: EpisodeRow) -> bool:
        return author is not None and row.content.get("author") == author

    def source(row: EpisodeRow) -> Shown:
        summary = feedback_summary(row, scale)
        return {"episode_id": row.id, "title": row_title(row), "mine": is_own(row), **summary}

    overview = []
    for guideline in guidelines:
        sources = _newest(rows[key] for key in guideline.episode_ids if key in rows)
        sources.sort(key=is_own, reverse=True)
        overview.append({**dict(guideline), "sources": list(map(source, sources[:_MAX_SOURCES]))})
    return {
        "guidelines": overview,
        "disputes": _disputes(rows.values(), scale),
        "history": await _last_commits(access, rows),
    }


async def _last_commits(access: MemoryAccess, rows: dict[str, EpisodeRow]) -> list[Shown]:
    commits = await history(ASYNC, access, _MAX_COMMITS)
    answered = {fact.id: fact.said for fact in access.view.facts()[0]}
    recent: list[Shown] = []
    for commit in commits:
        answers = [rows[key] for key in answered.get(commit.id, ()) if key in rows]
        authors = sorted({author for row in answers if (author := row.content.get("author"))})
        what = _describe_commit(commit, commit.author or ", ".join(authors))
        recent.append({"version": commit.version, "at": _time(commit.at), "what": what})
    return recent


def _describe_commit(commit: Commit, author: str) -> str:
    """Say in a sentence who did what, and how much."""
    by_judge = commit.reason in _BY_JUDGE
    answers, rules = commit.episodes, commit.guidelines
    counts = {
        "answers given": answers.added,
        "answers learned from" if by_judge else "answers changed": answers.changed,
        "answers taken back": answers.removed,
        "rules added": rules.added,
        "rules changed": rules.changed,
        "rules removed": rules.removed,
    }
    much = ", ".join(f"{name}: {number}" for name, number in counts.items() if number)
    who = author or ("The judge" if by_judge else "An expert")
    return f"{who} {_ACTIONS.get(commit.reason, 'changed things')} ({much or 'nothing new'})."


def _disputes(rows: Iterable[EpisodeRow], scale: Scale) -> list[Shown]:
    """Return the cases on which experts disagree, newest first."""
    by_example = defaultdict(list)
    for row in rows:
        if (value := value_or_none(row.value, scale)) is not None:
            by_example[row.example_id].append((row, value))
    disputed = [
        _newest(row for row, _ in labels)
        for labels in by_example.values()
        if any(not values_agree(scale, a, b) for (_, a), (_, b) in combinations(labels, 2))
    ]
    disputed.sort(key=lambda newest: newest[0].given_at, reverse=True)
    return [
        {"title": row_title(newest[0]), "answers": [feedback_summary(row, scale) for row in newest]}
        for newest in disputed[:_MAX_DISPUTES]
    ]


async def answers_by(access: MemoryAccess, author: str, first: int = 0) -> Shown:
    """Return a hundred answers of an expert, newest first, and where older ones begin."""
    texts = defaultdict(list)
    for guideline in await access.guidelines(ASYNC):
        for key in guideline.episode_ids:
            texts[key].append(guideline.text)
    scale, older = access.criterion.scale, first + _MAX_ANSWERS
    rows = _newest(row for row in access.view.rows() if row.content.get("author") == author)

    def shown(row: EpisodeRow) -> Shown:
        value = "" if row.value is None else scale.show(row.value)
        filled = {"value": value, "rationale": row.content.get("rationale") or ""}
        return {
            "episode_id": row.id,
            "title": row_title(row),
            **feedback_summary(row, scale),
            "at": _time(row.given_at),
            "learned": texts[row.id],
            "fields": answer_fields(access.criterion, filled),
        }

    answers = list(map(shown, rows[first:older]))
    return {"answers": answers, "older_from": older if older < len(rows) else None}


async def agreement_overview(access: MemoryAccess) -> Shown:
    """Return how often judge and experts agree, and how often experts were asked."""
    today, scale = utc_now().date(), access.criterion.scale
    report = await review_report(ASYNC, access, since=today - timedelta(_DAYS - 1))
    by_week: defaultdict[date, list[bool]] = defaultdict(list)
    by_expert: defaultdict[Any, list[bool]] = defaultdict(list)
    for row in access.view.rows():
        value, day = value_or_none(row.value, scale), row.given_at.astimezone(UTC).date()
        # One verdict for each answer: others are of earlier judges, or of the case judged again.
        verdict = value_or_none((row.content.get("judgment") or {}).get("value"), scale)
        if value is not None and verdict is not None:
            agrees = values_agree(scale, verdict, value)
            by_week[day - timedelta(day.weekday())].append(agrees)
            by_expert[row.content.get("author")].append(agrees)
    agreements = [agrees for expert in by_expert.values() for agrees in expert]
    monday = today - timedelta(today.weekday())
    mondays = [monday - timedelta(weeks=back) for back in reversed(range(_WEEKS))]
    experts = sorted(by_expert.items(), key=lambda expert: -len(expert[1]))
    return {
        "agreement": _agreement(agreements),
        "weeks": [{"label": f"{week:%d %b}", **_agreement(by_week[week])} for week in mondays],
        "experts": [{"author": author, **_agreement(agrees)} for author, agrees in experts],
        "days": _DAYS,
        "report": report,
        "rate": await _rate(access, mondays),
    }


def _agreement(agrees: Sequence[bool]) -> Shown:
    share = sum(agrees) / len(agrees) if agrees else None
    return {"n": len(agrees), "agreed": sum(agrees), "share": share}


async def _rate(access: MemoryAccess, mondays: Sequence[date]) -> Shown | None:
    """Return the estimated true pass rate; None without kept judgments."""
    scale = access.criterion.scale
    if not isinstance(scale, Boolean | Numeric):
        return None  # other scales do not say which values pass
    overall = await pass_rate(ASYNC, access, by="week")
    if not overall.judgments:
        return None
    weeks = [(f"{week:%d %b}", overall.groups.get(str(week))) for week in mondays]
    return {
        "all": overall,
        "weeks": [week for week in weeks if week[1]],
        "bounds": (scale.minimum, scale.maximum) if isinstance(scale, Numeric) else (0, 1),
        "is_mean": isinstance(scale, Numeric),
    }


def row_title(row: EpisodeRow) -> str:
    """Return the first words of what was judged."""
    return title_of(row.content["example"]["outputs"])


def feedback_summary(row: EpisodeRow, scale: Scale) -> Shown:
    """Return who answered, with what value and comment."""
    fields = {name: row.content.get(name) for name in ("author", "rationale")}
    return {**fields, "value": None if row.value is None else shown_value(scale, row.value)}


def _newest(rows: Iterable[EpisodeRow]) -> list[EpisodeRow]:
    return sorted(rows, key=lambda row: (row.given_at, row.id), reverse=True)


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%d %b %Y, %H:%M} UTC"


async def embed_case(accesses: Sequence[MemoryAccess], example: Mapping[str, Any]) -> Any:
    """Embed a case once for several criteria; None if that fails."""
    for access in accesses:
        await access.refresh(ASYNC)
    with suppress(EmbeddingError):  # the page then says that similar cases are not known
        return await embed_once(ASYNC, accesses, Example.model_validate(example))
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
    verdict = stored.verdict if stored else None
    if verdict is None and judgment is not None:
        verdict = RawVerdict(judgment.verdict, judgment.probabilities)
    case = EvidenceCase(
        vector_key=key,
        vector=vector,
        example_id=example.id,
        episode_ids=[],
        value=consensus(values, scale),
        verdict=verdict,
        judged_at=datetime.now(UTC),
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
    supported = [active.get(table.apply(operation) or "") for operation in result.operations]
    # A guideline by hand gets no sources, so the table reports no change of it.
    proposals: list[Shown] = [
        {"action": "support", "text": guideline.text, "question": guideline.question}
        for guideline in supported
        if guideline is not None and guideline.origin == "expert"
    ]
    for change in table.outcome:
        action, guideline = change["action"], table.after.get(change["guideline_id"])
        if action == "add" and change["guideline_id"] in active:
            action = "support"
        question = None if guideline is None else guideline.question
        proposals.append({"action": action, "text": change["text"], "question": question})
    return proposals


async def nearest_case(
    access: MemoryAccess, example: Example, vector: Vector | None
) -> Shown | None:
    """Return the nearest other labeled case; for a tool call, the nearest approved call."""
    view, scale = await access.refresh(ASYNC), access.criterion.scale
    await index_missing(ASYNC, access, view)
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
        if rows := _newest(filter(is_comparable, view.rows_for_vector(key))):
            near = stored_example(rows[0].content["example"])
            summary = feedback_summary(rows[0], scale)
            return {"similarity": min(similarity, 1.0), **summary, "example": near}
    return None
