"""A memory as people read it: lists, single items, the past. Pure functions."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from memalign_graph.cli.output import one_line
from memalign_graph.cli.reports import WIDTH, count, item
from memalign_graph.cli.selecting import short_ids
from memalign_graph.memory.history import Commit, Tally
from memalign_graph.scales import Scale
from memalign_graph.types import Episode, Guideline

_AUTHOR_CHARS = 16


def memory_text(
    guidelines: Sequence[Guideline], episodes: Sequence[Episode], scale: Scale, limit: int | None
) -> str:
    """List guidelines and episodes, a line each."""
    short = short_ids([*(one.id for one in guidelines), *(one.id for one in episodes)])
    outdated = sum(one.status == "pending" for one in guidelines)
    others = [f"{outdated} to be worded anew"] if outdated else []
    pending = sum(one.status == "pending" for one in episodes)
    waiting = [f"{pending} yet to be distilled"] if pending else []
    lines = [
        f"{count(len(guidelines), 'guideline')}{_besides(others)}",
        *_shown([_guideline_line(one, short) for one in guidelines], limit, newest_last=False),
        "",
        f"{count(len(episodes), 'episode')}{_besides(waiting)}",
        *_shown([_episode_line(one, short, scale) for one in episodes], limit, newest_last=True),
    ]
    return "\n".join(lines)


def guideline_text(guideline: Guideline, sources: Sequence[Episode], scale: Scale) -> str:
    """Show a guideline in full, with the feedback it came from."""
    by = f" by {guideline.author}" if guideline.author else ""
    origin = f"written by hand{by}" if guideline.origin == "expert" else f"distilled{by}"
    lines = [
        f"guideline   {guideline.id}",
        item(guideline.text, "text        "),
        f"status      {guideline.status}",
        f"origin      {one_line(origin)}",
        f"created     {_time(guideline.created_at)}",
        f"updated     {_time(guideline.updated_at)}",
        f"sources     {len(guideline.episode_ids)}",
    ]
    for one in sources:
        said = _said(one, scale)
        lines.append(item(f"{one.id} {_by(one)}, {_time(one.given_at)}: {said}", indent=2))
    gone = len(guideline.episode_ids) - len(sources)
    if gone > 0:
        lines.append(f"  - {count(gone, 'source')} no longer in the memory")
    return "\n".join(lines)


def episode_text(episode: Episode, taught: Sequence[Guideline], scale: Scale) -> str:
    """Show an episode in full, with the guidelines that rest on it."""
    lines = [
        f"episode     {episode.id}",
        f"example     {episode.example_id}",
        f"status      {episode.status}",
        f"given by    {_by(episode)}, {_time(episode.given_at)}",
    ]
    if episode.feedback_id:
        lines.append(f"feedback id {one_line(episode.feedback_id)}")
    if episode.value is not None:
        lines.append(f"value       {one_line(scale.show(episode.value))}")
    if episode.rationale:
        lines.append(item(episode.rationale, "rationale   "))
    if episode.judgment:
        verdict = f"{scale.show(episode.judgment.value)}: {episode.judgment.rationale}"
        lines.append(item(verdict, "judge said  "))
    if episode.thread_ids:
        lines.append(item(", ".join(episode.thread_ids), "threads     "))
    for name in ("inputs", "outputs", "reference_outputs"):
        value = getattr(episode.example, name)
        if value is not None:
            lines += [f"{name}:", _indented(value)]
    lines.append(f"guidelines that rest on it: {len(taught)}")
    lines += [item(f"{one.id} ({one.status}) {one.text}", indent=2) for one in taught]
    return "\n".join(lines)


def history_text(commits: Sequence[Commit], limit: int | None) -> str:
    """List commits, newest first: the version after each, when, who, why, and how much."""
    short = short_ids([one.version for one in commits])
    lines = [
        f"{short[one.version]}  {_time(one.at)}  {one_line(one.reason, 24)}"
        f"{f' by {one_line(one.author, _AUTHOR_CHARS)}' if one.author else ''}: "
        f"{_tally(one.episodes, 'episode')}, {_tally(one.guidelines, 'guideline')}"
        for one in commits
    ]
    return "\n".join(_shown(lines, limit, newest_last=False))


def episode_line(episode: Episode, scale: Scale) -> str:
    """Tell an episode in one line."""
    return one_line(f"{episode.id[:8]} {_by(episode)}: {_said(episode, scale)}", WIDTH)


def _guideline_line(one: Guideline, short: dict[str, str]) -> str:
    status = "" if one.status == "standing" else f"[{one.status}] "
    sources = count(len(one.episode_ids), "source")
    origin = "by hand" if one.origin == "expert" and not one.episode_ids else sources
    return f"  {short[one.id]}  {one_line(f'{status}{one.text}', WIDTH)} ({origin})"


def _episode_line(one: Episode, short: dict[str, str], scale: Scale) -> str:
    status = "[pending] " if one.status == "pending" else ""
    text = one_line(f"{status}{_said(one, scale)}", WIDTH)
    return (
        f"  {short[one.id]}  {one.given_at:%Y-%m-%d}  {one_line(_by(one), _AUTHOR_CHARS)}  {text}"
    )


def _shown(lines: Sequence[str], limit: int | None, *, newest_last: bool) -> list[str]:
    """Return as many lines as are asked for, and how many more there are."""
    if limit is None or len(lines) <= limit:
        return list(lines)
    more = f"  … and {len(lines) - limit:,} more (--limit 0 shows all)"
    return [more, *lines[-limit:]] if newest_last else [*lines[:limit], more]


def _besides(parts: Sequence[str]) -> str:
    return f" ({', '.join(parts)})" if parts else ""


def _said(episode: Episode, scale: Scale) -> str:
    parts = [] if episode.value is None else [scale.show(episode.value)]
    return " - ".join([*parts, *([episode.rationale] if episode.rationale else [])])


def _by(episode: Episode) -> str:
    return episode.author or "anonymous"


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def _tally(tally: Tally, what: str) -> str:
    parts = [
        f"{sign}{number}"
        for sign, number in (("+", tally.added), ("~", tally.changed), ("-", tally.removed))
        if number
    ]
    return f"{what}s {' '.join(parts) or '0'}"


def _indented(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
