"""What the judge has learned, what an expert said, and how far both agree."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import combinations
from typing import Any

from memalign_graph.agreement import value_or_none, values_agree
from memalign_graph.evidence.checks import YES_THRESHOLD
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.checks import check_answers, is_answer_to
from memalign_graph.memory.episode_row import EpisodeRow
from memalign_graph.memory.history import Commit, history
from memalign_graph.memory.judgments import read_review_log, utc_now
from memalign_graph.memory.pass_rate import pass_rate
from memalign_graph.memory.review_report import review_report
from memalign_graph.review.preview import Shown, feedback_summary, title_of
from memalign_graph.scales import Boolean, Numeric, Scale

_MAX_COMMITS, _MAX_SOURCES, _MAX_DISPUTES, _MAX_ANSWERS, _WEEKS, _DAYS = 30, 50, 50, 100, 12, 14
_BY_JUDGE = ("learn", "align", "redistill", "consolidate", "ask", "check", "judge cases")
_ACTIONS = dict.fromkeys(_BY_JUDGE, "learned") | {
    "remember": "answered",
    "revise": "changed an answer",
    "forget": "took back answers",
    "add_guideline": "wrote a rule",
    "edit_guideline": "reworded a rule",
    "remove_guideline": "dropped a rule",
    "rollback": "went back to how things stood",
}


async def guideline_overview(io: IO, access: MemoryAccess, author: str | None) -> Shown:
    """Return the guidelines with their sources, the cases in dispute, and the last commits."""
    guidelines, scale = await access.guidelines(io), access.criterion.scale
    rows, answers = {row.id: row for row in access.view.rows()}, check_answers(access.view)
    fields = {"id", "text", "question", "origin", "author", "status"}

    def is_own(row: EpisodeRow) -> bool:
        return author is not None and row.content.get("author") == author

    def source(row: EpisodeRow) -> Shown:
        summary = feedback_summary(row, scale)
        return {"episode_id": row.id, "title": title_of(row), "mine": is_own(row), **summary}

    overview = []
    for guideline in guidelines:
        by_model = [
            cases
            for question, cases in answers.items()
            if is_answer_to(question, guideline.question or "")
        ]
        checked = max(by_model, key=len, default={})  # by the model that was asked most
        met = sum(probability >= YES_THRESHOLD for probability in checked.values())
        worth = guideline.worth
        share = worth and f"{worth.auc:.0%} of the time, on {worth.cases} cases."
        sources = _newest(rows[key] for key in guideline.episode_ids if key in rows)
        sources.sort(key=is_own, reverse=True)
        overview.append(
            {
                **guideline.model_dump(include=fields),
                "worth": share and f"Tells good answers from bad ones {share}",
                "checks": f"Cases that meet it: {met} of {len(checked)}." if checked else None,
                "sources": list(map(source, sources[:_MAX_SOURCES])),
            }
        )
    commits = await _recent_commits(io, access)
    disputes = _disputes(rows.values(), scale)
    return {"guidelines": overview, "disputes": disputes, "history": commits}


async def _recent_commits(io: IO, access: MemoryAccess) -> list[Shown]:
    """Describe the last commits; they are folded again only when the memory has changed."""
    view = await access.refresh(io)
    facts, rows = view.facts()[0], {row.id: row for row in view.rows()}
    key = len(facts), view.version
    cached: tuple[Any, list[Shown]] | None = view.derived_cache.get("recent commits")
    if cached is not None and cached[0] == key:
        return cached[1]
    answered = {fact.id: fact.said for fact in facts}
    commits: list[Shown] = []
    for commit in await history(io, access, _MAX_COMMITS):
        episodes = answered.get(commit.id, ())
        authors = {rows[each].content.get("author") for each in episodes if each in rows}
        who = commit.author or ", ".join(sorted(filter(None, authors)))
        what = _describe_commit(commit, who)
        commits.append({"version": commit.version, "at": _time(commit.at), "what": what})
    view.derived_cache["recent commits"] = key, commits
    return commits


def _disputes(rows: Iterable[EpisodeRow], scale: Scale) -> list[Shown]:
    """Return the cases on which two experts differ, the newest first."""
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
        {"title": title_of(newest[0]), "words": [feedback_summary(row, scale) for row in newest]}
        for newest in disputed[:_MAX_DISPUTES]
    ]


async def answers_by(io: IO, access: MemoryAccess, author: str) -> list[Shown]:
    """Return an expert's answers, the newest first, with the guidelines learned from them."""
    texts = defaultdict(list)
    for guideline in await access.guidelines(io):
        for key in guideline.episode_ids:
            texts[key].append(guideline.text)
    scale = access.criterion.scale
    rows = _newest(row for row in access.view.rows() if row.content.get("author") == author)
    return [
        {
            "episode_id": row.id,
            "title": title_of(row),
            "written": "" if row.value is None else scale.show(row.value),
            **feedback_summary(row, scale),
            "at": _time(row.given_at),
            "learned": texts[row.id],
        }
        for row in rows[:_MAX_ANSWERS]
    ]


async def agreement_overview(io: IO, access: MemoryAccess) -> Shown:
    """Return how far judge and experts agree, and how much experts are asked."""
    view, scale, today = await access.refresh(io), access.criterion.scale, utc_now().date()
    rows = view.rows()
    by_day, experts, judged = defaultdict(list), defaultdict(list), {}
    for row in rows:
        value = value_or_none(row.value, scale)
        for judgment_id, stored in row.verdicts.items():
            verdict = value_or_none(stored, scale)
            if value is not None and verdict is not None:
                judged[judgment_id] = is_right = values_agree(scale, verdict, value)
                by_day[row.given_at.date()].append(is_right)
                experts[row.content.get("author")].append(is_right)
    weeks: defaultdict[date, list[bool]] = defaultdict(list)
    for day, rights in by_day.items():
        weeks[day - timedelta(day.weekday())] += rights
    days = [today - timedelta(back) for back in reversed(range(_DAYS))]
    items = await read_review_log(io, access, since=days[0])
    asked = [item for item in items if item.asked]
    right = [judged[item.judgment_id] for item in asked if item.judgment_id in judged]
    everything = [is_right for rights in experts.values() for is_right in rights]
    sentence = "No answer that was judged has an expert's value yet."
    if everything:
        sentence = f"The judge agrees with the experts on {_fraction_text(everything)} answers."
    coverage = (
        f"In the last {_DAYS} days experts were asked about {len(asked)} of {len(items)} answers; "
        f"where they then gave a value, it was right on {_fraction_text(right)}. How often the "
        "judge is right where nobody was asked is not known."
    )
    monday = today - timedelta(today.weekday())
    mondays = [monday - timedelta(weeks=back) for back in reversed(range(_WEEKS))]
    per_day = Counter(item.date for item in asked)
    answered = Counter(row.given_at.date() for row in rows)
    by_number = sorted(experts.items(), key=lambda entry: -len(entry[1]))
    return {
        "agreement": {"n": len(everything), "agreed": sum(everything), "sentence": sentence},
        "weeks": [{"label": f"{week:%d %b}", **_agreement(weeks[week])} for week in mondays],
        "experts": [{"author": author, **_agreement(rights)} for author, rights in by_number],
        "coverage": [{"sentence": coverage}] if items else [],
        "days": [
            {"label": f"{day:%d %b}", "asked": per_day[day], "answered": answered[day]}
            for day in days
        ],
        "drift": (await review_report(io, access)).drift,
        "rate": await _rate(io, access, mondays),
    }


async def _rate(io: IO, access: MemoryAccess, mondays: Sequence[date]) -> Shown | None:
    """Return how many of the judgments kept really pass; None where that is not known."""
    scale = access.criterion.scale
    if not isinstance(scale, Boolean | Numeric):
        return None  # nothing says which values pass
    found = await pass_rate(io, access, by="week")
    weeks = [(f"{week:%d %b}", found.groups.get(str(week))) for week in mondays]
    is_mean = isinstance(scale, Numeric)
    bounds = (scale.minimum, scale.maximum) if isinstance(scale, Numeric) else (0, 1)
    shown = {"all": found, "weeks": [week for week in weeks if week[1]]}
    return {**shown, "bounds": bounds, "is_mean": is_mean} if found.judgments else None


def _newest(rows: Iterable[EpisodeRow]) -> list[EpisodeRow]:
    return sorted(rows, key=lambda row: (row.given_at, row.id), reverse=True)


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%d %b %Y, %H:%M} UTC"


def _agreement(rights: Sequence[bool]) -> Shown:
    return {"n": len(rights), "share": sum(rights) / len(rights) if rights else None}


def _fraction_text(rights: Sequence[bool]) -> str:
    share = f" ({sum(rights) / len(rights):.0%})" if rights else ""
    return f"{sum(rights)} of {len(rights)}{share}"


def _describe_commit(commit: Commit, author: str) -> str:
    """Tell who did what, and how much, in a sentence."""
    by_judge = commit.reason in _BY_JUDGE
    answers, rules = commit.episodes, commit.guidelines
    counts = {
        "answers given": answers.added,
        "answers learned from" if by_judge else "answers changed": answers.changed,
        "answers taken back": answers.removed,
        "rules added": rules.added,
        "rules changed": rules.changed,
        "rules dropped": rules.removed,
    }
    much = ", ".join(f"{name}: {number}" for name, number in counts.items() if number)
    who = author or ("The judge" if by_judge else "Somebody")
    return f"{who} {_ACTIONS.get(commit.reason, 'changed things')} ({much or 'nothing new'})."
