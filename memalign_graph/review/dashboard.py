"""The overviews of a memory: its rules with their history, an expert's answers, and agreement."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, date, timedelta
from itertools import combinations
from typing import Any

from memalign_graph.agreement import value_or_none, values_agree
from memalign_graph.io import ASYNC
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.history import Commit, history
from memalign_graph.memory.judgments import utc_now
from memalign_graph.memory.memory_state import EpisodeRow
from memalign_graph.memory.reports import pass_rate, review_report
from memalign_graph.review.forms import answer_fields, shown_value
from memalign_graph.review.tasks import title_of
from memalign_graph.scales import Boolean, Numeric, Scale

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


async def guideline_overview(access: MemoryAccess) -> Shown:
    """Return the guidelines with their sources, the cases in dispute, and the last commits."""
    guidelines, scale = await access.guidelines(ASYNC), access.criterion.scale
    rows = {row.id: row for row in access.view.rows()}
    overview = []
    for guideline in guidelines:
        sources = newest_first(rows[key] for key in guideline.episode_ids if key in rows)
        shown = [feedback_summary(row, scale) for row in sources[:_MAX_SOURCES]]
        overview.append({**dict(guideline), "sources": shown})
    return {
        "guidelines": overview,
        "disputes": _disputes(rows.values(), scale),
        "history": await _last_commits(access, rows),
    }


async def _last_commits(access: MemoryAccess, rows: dict[str, EpisodeRow]) -> list[Shown]:
    answered = {fact.id: fact.said for fact in access.view.facts()[0]}
    recent: list[Shown] = []
    for commit in await history(ASYNC, access, _MAX_COMMITS):
        answers = [rows[key] for key in answered.get(commit.id, ()) if key in rows]
        authors = sorted({author for row in answers if (author := row.content.get("author"))})
        what = _describe_commit(commit, commit.author or ", ".join(authors))
        recent.append({"version": commit.version, "at": commit.at, "what": what})
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
        newest_first(row for row, _ in labels)
        for labels in by_example.values()
        if any(not values_agree(scale, a, b) for (_, a), (_, b) in combinations(labels, 2))
    ]
    disputed.sort(key=lambda answers: answers[0].given_at, reverse=True)
    return [
        {"title": row_title(rows[0]), "answers": [feedback_summary(row, scale) for row in rows]}
        for rows in disputed[:_MAX_DISPUTES]
    ]


async def answers_by(access: MemoryAccess, author: str, first: int = 0) -> Shown:
    """Return a hundred answers of an expert, newest first, and where older ones begin."""
    texts = defaultdict(list)
    for guideline in await access.guidelines(ASYNC):
        for key in guideline.episode_ids:
            texts[key].append(guideline.text)
    scale, older = access.criterion.scale, first + _MAX_ANSWERS
    rows = newest_first(row for row in access.view.rows() if row.content.get("author") == author)

    def shown(row: EpisodeRow) -> Shown:
        value = "" if row.value is None else scale.show(row.value)
        filled = {"value": value, "rationale": row.content.get("rationale") or ""}
        return {
            "episode_id": row.id,
            **feedback_summary(row, scale),
            "at": row.given_at,
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
    experts = sorted(by_expert.items(), key=lambda expert: -len(expert[1]))
    rate = None
    if isinstance(scale, Boolean | Numeric):  # other scales do not say which values pass
        rate = await pass_rate(ASYNC, access, by="week")
    monday = today - timedelta(today.weekday())
    weeks = [
        {"monday": week, **_agreement(by_week[week]), "rate": rate and rate.groups.get(str(week))}
        for week in (monday - timedelta(weeks=back) for back in reversed(range(_WEEKS)))
    ]
    return {
        "agreement": _agreement(agreements),
        "weeks": weeks,
        "experts": [{"author": author, **_agreement(agrees)} for author, agrees in experts],
        "days": _DAYS,
        "report": report,
        "rate": rate,
        "is_mean": isinstance(scale, Numeric),
    }


def _agreement(agrees: Sequence[bool]) -> Shown:
    share = sum(agrees) / len(agrees) if agrees else None
    return {"n": len(agrees), "agreed": sum(agrees), "share": share}


def row_title(row: EpisodeRow) -> str:
    """Return the first words of what was judged."""
    return title_of(row.content["example"]["outputs"])


def feedback_summary(row: EpisodeRow, scale: Scale) -> Shown:
    """Return what was judged, and who answered with what value and comment."""
    fields = {name: row.content.get(name) for name in ("author", "rationale")}
    value = None if row.value is None else shown_value(scale, row.value)
    return {"title": row_title(row), "value": value, **fields}


def newest_first(rows: Iterable[EpisodeRow]) -> list[EpisodeRow]:
    return sorted(rows, key=lambda row: (row.given_at, row.id), reverse=True)
