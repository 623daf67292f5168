"""Operations on feedback: remember, revise, and add the judge's verdicts.

Each operation reads the memory and writes one fact. Concurrent writers cannot overwrite each other,
because readers fold all facts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from memalign_graph.agreement import value_or_none
from memalign_graph.errors import InvalidInputError, show_value
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.facts import JUDGE_CASES, REMEMBER
from memalign_graph.memory.index import Vector
from memalign_graph.memory.memory_state import EpisodeRow, merge_feedback, without_undone
from memalign_graph.memory.purge import write_fact
from memalign_graph.memory.recall import ensure_vectors
from memalign_graph.memory.view import MemoryView
from memalign_graph.scales import Pairwise, Scale
from memalign_graph.types import (
    Criterion,
    Episode,
    Example,
    Feedback,
    Judgment,
    parse_feedback,
)


@dataclass(frozen=True)
class RememberResult:
    """What storing feedback changed."""

    episodes: list[Episode]
    """The resulting episode of each piece of feedback, in order; none for table rows that their
    expert has forgotten since."""
    new: set[str]
    changed: set[str]
    """The ids of episodes whose value or rationale changed."""
    warnings: list[str]
    """Names the feedback that has no vector."""


async def remember(
    io: IO,
    access: MemoryAccess,
    feedback: Sequence[Feedback],
    *,
    known_vectors: Mapping[str, Vector] = MappingProxyType({}),
    is_table: bool = False,
    embeds: bool = True,
) -> RememberResult:
    """Store feedback as episodes.

    A table may be stored repeatedly: a row counts once, unless it has a later date, so that it does
    not undo what its expert revised or forgot since. Further threads of a row change nothing.
    Without `embeds`, new cases are embedded at the next search. A case whose text the embeddings
    refuse is stored without a vector.
    """
    checked = [check_feedback(item, access.criterion) for item in feedback]
    view = await access.refresh(io)
    ids = [item.episode_id for item in checked]
    logged = feedback_in_log(view) if is_table else {}
    outdated = logged.keys() - {(old.id, old.word) for old in view.episodes(ids).values()}
    checked = [
        item
        for item in checked
        if (row := _log_key(item)) not in outdated or _is_newer(view, item, logged[row])
    ]
    new = {item.episode_id: item.example for item in checked if not view.holds(item.episode_id)}
    warnings: list[str] = []
    if embeds:
        _, warnings = await ensure_vectors(io, access, new, known_vectors)
    view = await access.refresh(io)
    purges, known, stored = view.purges(), view.fact_ids(), view.episodes(ids)
    submitted: dict[str, Episode] = {}
    redated = set[str]()
    for item in checked:
        episode = Episode.from_feedback(item, "distilled" if item.agrees else "pending")
        if "given_at" not in item.model_fields_set and (before := stored.get(episode.id)):
            redated.add(episode.id)
            given_at = date_after(before.given_at, item.given_at)
            episode = episode.model_copy(update={"given_at": given_at})
        submitted[episode.id] = merge_feedback(submitted.get(episode.id), episode)
    after = {key: merge_feedback(stored.get(key), episode) for key, episode in submitted.items()}
    changed = {key for key in after.keys() & stored if not stored[key].says_the_same_as(after[key])}
    for key in (after.keys() & stored) - changed:
        before, given_at = stored[key], stored[key].given_at
        if key in redated:  # the same feedback again keeps its date
            submitted[key] = submitted[key].model_copy(update={"given_at": given_at})
            after[key] = merge_feedback(before, submitted[key])
        is_same = (after[key].verdicts, after[key].given_at) == (before.verdicts, given_at)
        if is_table and is_same:
            after[key] = before
    authors = {item.author for item in checked}
    author = authors.pop() if len(authors) == 1 else None
    written = [submitted[key] for key, episode in after.items() if episode != stored.get(key)]
    rows = {*map(_log_key, checked)} if is_table else set()
    # The record of merged feedback has another hash than its row: the log keeps both.
    recorded = {(key, episode.word) for key, episode in submitted.items() if key not in stored}
    repeated = by_episode(rows - logged.keys() - recorded)
    while written or repeated:
        change = {"repeated": repeated}
        await write_fact(io, access, purges, REMEMBER, change, author=author, episodes=written)
        written, repeated = _merge_concurrent(view, known, {*after}), {}
        after |= {episode.id: episode for episode in written}
    active = {**stored, **after}
    episodes = [active[key] for key in ids if key in active]
    return RememberResult(episodes, after.keys() - stored.keys(), changed, warnings)


def _merge_concurrent(view: MemoryView, known: set[str], ids: set[str]) -> list[Episode]:
    """Merge what experts gave in several requests at once: readers keep only the newest."""
    facts, rows = view.facts()
    fresh = [fact for fact in facts if fact.id not in known]
    # What is revised, forgotten or purged meanwhile does not return.
    if not fresh[1:] or {fact.reason for fact in fresh} != {REMEMBER}:
        return []
    said = [rows[fact.said[key]].content for fact in fresh for key in fact.said.keys() & ids]
    merged: dict[str, Episode] = {}
    for episode in sorted(map(Episode.model_validate, said), key=lambda each: each.given_at):
        merged[episode.id] = merge_feedback(merged.get(episode.id), episode)
    active = view.episodes(merged)
    return [merged[key] for key in active if not merged[key].says_the_same_as(active[key])]


def date_after(before: datetime, given_at: datetime) -> datetime:
    """Return the date of new feedback: later than what came before, whichever clock dated that."""
    latest = datetime.max.replace(tzinfo=UTC)
    return max(given_at, before + min(timedelta(microseconds=1), latest - before))


def date_after_known(view: MemoryView, episode_id: str, given_at: datetime) -> datetime:
    """Return a date after this expert's stored feedback on the example, and after its removal."""
    dates = [episode.given_at for episode in view.episodes([episode_id]).values()]
    return date_after(max([view.forgotten_at(episode_id), *dates]), given_at)


async def take_back(
    io: IO, access: MemoryAccess, episode_id: str, given_at: datetime, *, author: str | None
) -> None:
    """Undo storing feedback of this date: what it replaced is active again, if not forgotten."""
    facts, rows = (await access.refresh(io)).facts()
    undone = [
        fact.id
        for fact in without_undone(facts)
        if fact.reason == REMEMBER
        and fact.said.keys() == {episode_id}
        and rows[fact.said[episode_id]].given_at == given_at
    ]
    if undone:
        await access.write(io, "forget", {"undone": undone}, author=author)


def _is_newer(view: MemoryView, row: Feedback, logged_at: datetime) -> bool:
    """Return whether a row may count again; if its expert said more since, merging decides."""
    key, is_dated = row.episode_id, "given_at" in row.model_fields_set
    return is_dated and (view.holds(key) or logged_at < row.given_at > view.forgotten_at(key))


def _log_key(feedback: Feedback) -> tuple[str, str]:
    """Return the key of feedback in `feedback_in_log`: the episode's id and the hash."""
    return feedback.episode_id, Episode.from_feedback(feedback).word


def by_episode(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group feedback hashes by episode id, in a stable order."""
    grouped: dict[str, list[str]] = {}
    for key, feedback_hash in sorted(pairs):
        grouped.setdefault(key, []).append(feedback_hash)
    return grouped


def feedback_in_log(view: MemoryView) -> dict[tuple[str, str], datetime]:
    """Return when all feedback was last stored and not rolled back, by episode id and hash."""
    facts, rows = view.facts()
    logged: dict[tuple[str, str], datetime] = {}
    for fact in without_undone(facts):
        pairs = [(key, rows[record].feedback_hash) for key, record in fact.said.items()]
        pairs += [(key, each) for key, hashes in fact.repeated.items() for each in hashes]
        logged |= dict.fromkeys(pairs, fact.time)
    return logged


async def revise(
    io: IO, access: MemoryAccess, episode_id: str, feedback: Feedback | Mapping[str, Any]
) -> Episode:
    view = await access.refresh(io)
    purges, stored = view.purges(), view.episodes([str(episode_id)]).get(str(episode_id))
    if stored is None:
        raise InvalidInputError(
            f"episode_id: {access.criterion.name!r} has no episode {show_value(episode_id)}. "
            "`episodes()` lists them."
        )
    revised = parse_feedback(_revision(stored, feedback))
    if (revised.episode_id, revised.id) != (stored.id, stored.feedback_id):
        raise InvalidInputError(
            "feedback: it has another author or example than the episode. Give only `value` and "
            "`rationale`, or use `remember`."
        )
    is_same = revised.value == stored.value  # which the scale may have lost
    value = stored.value if is_same else check_feedback(revised, access.criterion).value
    threads = [*stored.thread_ids, *([revised.thread_id] if revised.thread_id else [])]
    after = stored.model_copy(
        update={
            "value": value,
            "rationale": revised.rationale,
            "status": "pending",
            "thread_ids": list(dict.fromkeys(threads)),
            "given_at": date_after(stored.given_at, revised.given_at),
            "updated_at": datetime.now(UTC),
        }
    )
    if stored.says_the_same_as(after):
        return stored
    await write_fact(
        io, access, purges, "revise", {}, author=stored.author, episodes=[after], replaces=True
    )
    return after


def _revision(stored: Episode, feedback: Feedback | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(feedback, Feedback):
        feedback = {name: getattr(feedback, name) for name in feedback.model_fields_set}
    if not isinstance(feedback, Mapping):
        raise InvalidInputError(
            "feedback: expected Feedback, or a mapping with `value`, `rationale` or both, got "
            f"{type(feedback).__name__}."
        )
    fields: dict[str, Any] = {
        "value": stored.value,
        "rationale": stored.rationale,
        "author": stored.author,
        "id": stored.feedback_id,
    }
    if feedback.keys().isdisjoint({"example", *Example.model_fields}):
        fields["example"] = stored.example
    return fields | dict(feedback)


def parse_record(record: Any, criterion: Criterion, learn_from: str = "both") -> Feedback:
    """Parse feedback, and drop the part that `learn_from` excludes."""
    feedback = parse_feedback(record)
    check_pair_order(feedback.example, criterion)
    if learn_from != "both":
        parts = ("value", "rationale")
        wanted, unwanted = parts if learn_from == "labels" else parts[::-1]
        if getattr(feedback, wanted) is None:
            raise InvalidInputError(
                f"{wanted}: the record has none, but learn_from={learn_from!r} needs it."
            )
        feedback = feedback.model_copy(update={unwanted: None})
    return check_feedback(feedback, criterion)


def check_pair_order(example: Example, criterion: Criterion) -> None:
    """Refuse a pair that experts would see exchanged: JSON Schemas sort what a form shows."""
    names = [*example.outputs] if isinstance(example.outputs, dict) else []
    if isinstance(criterion.scale, Pairwise) and len(names) == 2 and names != sorted(names):  # noqa: PLR2004 - a pair
        raise InvalidInputError(
            f"outputs: the fields {names[0]!r} and {names[1]!r} are not in alphabetical order, in "
            "which experts see them. Give a list of the two outputs, or name them 'A' and 'B'."
        )


def check_feedback(feedback: Feedback, criterion: Criterion) -> Feedback:
    if feedback.value is None:
        return feedback
    try:
        value = criterion.scale.validate_value(feedback.value)
    except ValueError as error:
        raise InvalidInputError(f"value: {error}") from error
    return feedback.model_copy(update={"value": value})


def unjudged_cases(rows: Sequence[EpisodeRow], scale: Scale) -> list[str]:
    """Return an episode of each labeled case without a verdict of the judge."""
    labeled, open_cases, judged = dict[str, str](), set[str](), set[str]()
    for row in rows:
        if value_or_none(row.value, scale) is not None:
            labeled.setdefault(row.example_id, row.id)
        if row.past_verdict is None:
            open_cases.add(row.example_id)
        elif value_or_none(row.past_verdict.verdict, scale) is not None:
            judged.add(row.example_id)
    return [labeled[key] for key in labeled if key in open_cases - judged]


async def record_judgments(
    io: IO, access: MemoryAccess, judgments: Mapping[str, Judgment], *, replaces: bool = False
) -> None:
    """Store the judge's verdicts with the feedback on their cases.

    The judge's rationales are left out: they may quote other cases, and a purge would miss that.
    """
    view = await access.refresh(io)
    purges, now = view.purges(), datetime.now(UTC)
    judged: list[Episode] = []
    for row in view.rows():
        if row.example_id in judgments and (replaces or row.past_verdict is None):
            # Why the expert was asked stays true of the answer.
            review = row.past_verdict and row.past_verdict.review
            judgment = {**judgments[row.example_id].to_json(), "rationale": "", "review": review}
            changes = {"judgment": judgment, "other_verdicts": row.verdicts, "updated_at": now}
            judged.append(Episode.model_validate({**row.content, **changes}))
    if judged:
        await write_fact(io, access, purges, JUDGE_CASES, {}, episodes=judged, replaces=replaces)
