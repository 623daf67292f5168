"""`memalign memory ...`: look into the memory, take back, go back, move."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from memalign_graph.cli.files import (
    STDIN,
    database_path,
    find_id,
    has_table,
    name_of,
    output_path,
    read_text,
)
from memalign_graph.cli.options import Place, Status, grouped
from memalign_graph.cli.terminal import Terminal, count, listed, one_line, table
from memalign_graph.errors import InvalidInputError

if TYPE_CHECKING:
    from memalign_graph.memory.operations import Forgotten
    from memalign_graph.scales import Scale
    from memalign_graph.types import Episode, Guideline

app = typer.Typer(
    help="Look into the memory, take back, go back, move. Wherever an id or a version is asked "
    "for, its beginning will do, from four characters on."
)
Limit = Annotated[int, typer.Option(min=0, help="How many are shown; 0 for all.")]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Who asks for it, for the history.")]

_NO_VERSION = "0" * 32
"""The version of a memory in which there is nothing."""
_FEW = 10


@app.command(name="list")
@grouped
def list_all(*, limit: Limit = 50, place: Place, terminal: Terminal) -> int:
    """List what it holds: guidelines and episodes."""
    with place.open() as memory:
        guidelines, episodes, version = memory.guidelines(), memory.episodes(), memory.version()
    scale = place.criterion.criterion.scale
    rules = [
        (one.id[:8], one.status, str(len(one.episode_ids) or "by hand"), one_line(one.text))
        for one in guidelines
    ]
    words = [
        (one.id[:8], one.status, one_line(one.author or "anonymous", 16), _said(one, scale))
        for one in reversed(episodes)
    ]
    terminal.result(
        {
            "criterion": place.criterion.criterion.to_json(),
            **place.context,
            "version": version,
            "guidelines": _jsons(guidelines),
            "episodes": _jsons(episodes),
        },
        f"{place}, version {version[:8]}",
        *_cut("guideline", ("id", "status", "sources", "text"), rules, limit),
        *_cut("episode", ("id", "status", "by", "value and rationale"), words, limit),
    )
    return Status.DONE


@app.command()
@grouped
def show(
    *, key: Annotated[str, typer.Argument(metavar="ID")], place: Place, terminal: Terminal
) -> int:
    """Show one guideline or episode in full, with its sources."""
    with place.open() as memory:
        guidelines = {one.id: one for one in memory.guidelines()}
        episodes = {one.id: one for one in memory.episodes()}
    key = find_id(key, [*guidelines, *episodes], "guideline or episode")
    if key in guidelines:
        kind, other, item = "guideline", "episodes", guidelines[key].to_json()
        sources = guidelines[key].episode_ids
        related = [episodes[one].to_json() for one in sources if one in episodes]
    else:
        kind, other, item = "episode", "guidelines", episodes[key].to_json()
        related = [one.to_json() for one in guidelines.values() if key in one.episode_ids]
    names = ("id", "author", "rationale", "text")
    terminal.result(
        {"type": kind, **item, other: related},
        listed({"type": kind, **item, "example": None, **item.get("example", {})}),
        f"\n{other}: {len(related)}",
        *("  " + "  ".join(one[name] for name in names if one.get(name)) for one in related),
    )
    return Status.DONE


@app.command()
@grouped
def history(*, place: Place, terminal: Terminal, limit: Limit = 50) -> int:
    """List its commits, newest first."""
    with place.open() as memory:
        commits, version = memory.history(), memory.version()
    rows = []
    for commit in commits:
        tallies = (commit.episodes, commit.guidelines)
        changes = [f"+{tally.added} ~{tally.changed} -{tally.removed}" for tally in tallies]
        at = f"{commit.at:%Y-%m-%d %H:%M:%SZ}"
        rows.append((commit.version[:8], at, commit.author or "", *changes, commit.reason))
    header = ("version", "at", "by", "episodes", "guidelines", "reason")
    terminal.result(
        {"version": version, "commits": [one.model_dump(mode="json") for one in commits]},
        f"{place}, version {version[:8]}",
        *_cut("commit", header, rows, limit),
    )
    return Status.DONE


@app.command()
@grouped
def export(
    *,
    place: Place,
    terminal: Terminal,
    file: Annotated[Path, typer.Argument(dir_okay=False, allow_dash=True)],
) -> int:
    """Write it as lines of JSON that people can read; - is stdout."""
    to_stdout = str(file) == STDIN
    if to_stdout and terminal.as_json:
        raise InvalidInputError("--json: an export to stdout is JSON already: leave it out.")
    if not to_stdout:
        output_path(file, "FILE", place.criterion.path)
    with place.open() as memory:
        text, version = memory.export_jsonl(), memory.version()
        done = {"guidelines": len(memory.guidelines()), "episodes": len(memory.episodes())}
    if to_stdout:
        sys.stdout.write(text)
        return Status.DONE
    if file.exists() and not file.is_file():
        file.write_text(text, encoding="utf-8")  # a pipe or a device
    else:
        # Whole or not at all: an older export is not lost half-way.
        half = file.with_name(f".{file.name}.part")
        try:
            half.write_text(text, encoding="utf-8")
            if file.exists():
                shutil.copymode(file, half)
            half.replace(file)
        finally:
            half.unlink(missing_ok=True)
    counts = " and ".join(count(number, name[:-1]) for name, number in done.items())
    terminal.result({"file": str(file), **done, "version": version}, f"{counts} in {file}")
    return Status.DONE


@app.command(name="import")
@grouped
def import_file(*, place: Place, terminal: Terminal, file: str, by: By = None) -> int:
    """Bring in what export wrote; what is there in a newer form stays. - is stdin."""
    from langgraph.store.memory import InMemoryStore

    from memalign_graph.memory.judge_memory import JudgeMemory

    lines = read_text(file, "FILE").split("\n")
    try:
        if not place.memory.exists():
            # Tried first where nothing is lost: a file that can't be used makes no memory.
            JudgeMemory(InMemoryStore(), place.criterion.criterion).import_jsonl(lines)
        with place.open(is_new=True) as memory:
            before = memory.version()
            done: dict[str, Any] = {
                "file": file,
                "episodes": len(memory.import_jsonl(lines, author=by)),
                "guidelines": len(memory.guidelines()),
                "version_before": before,
                "version": memory.version(),
            }
    except InvalidInputError as error:
        raise InvalidInputError(f"FILE: {name_of(file)}: {error}") from error
    terminal.result(
        done,
        f"{count(done['episodes'], 'episode')} imported; the memory holds "
        f"{count(done['guidelines'], 'guideline')}, version {done['version'][:8]}",
    )
    return Status.DONE


@app.command()
@grouped
def rollback(*, place: Place, terminal: Terminal, version: str, by: By = None) -> int:
    """Make it again what it was at a version, as history or a judgment names it."""
    with place.open() as memory:
        versions = {commit.version for commit in memory.history()} | {_NO_VERSION}
        before = memory.version()
        missing = memory.rollback(find_id(version, versions, "version"), author=by).missing
        now = memory.version()
        changed = memory.diff(before, now)
    done: dict[str, Any] = {"version_before": before, "version": now, "missing": missing}
    lines = [f"memory from version {before[:8]} to {now[:8]}"]
    for name in ("episodes", "guidelines"):
        kind = getattr(changed, name)
        done[name] = {
            "restored": [one.id for one in kind.added],
            "removed": [one.id for one in kind.removed],
            "changed": [one.after.id for one in kind.changed],
        }
        lines.append(
            f"{name}: " + ", ".join(f"{len(ids)} {what}" for what, ids in done[name].items())
        )
    if before == now:
        lines = [f"nothing to change: the memory is at version {now[:8]}"]
    terminal.result(done, *lines)
    if missing:
        terminal.warn(f"{count(len(missing), 'item')} purged since stay away.")
    return Status.DONE


@app.command()
@grouped
def forget(
    *,
    place: Place,
    terminal: Terminal,
    keys: Annotated[list[str] | None, typer.Argument(metavar="ID...")] = None,
    author: Annotated[str | None, typer.Option(help="All that this expert said.")] = None,
    feedback_id: Annotated[
        list[str] | None, typer.Option(help="By the id in its file; may be repeated.")
    ] = None,
    purge: Annotated[bool, typer.Option("--purge", help="Erase it for good.")] = False,
    checkpoints: Annotated[
        Path | None, typer.Option(dir_okay=False, help="For --purge: the threads' SQLite file.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Distil again at once, with this model.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    by: By = None,
) -> int:
    """Take feedback back, and what was learned from it alone.

    Guidelines with other sources are distilled again from those: at once with --model, else by the
    next align. Only feedback that meets all that is given is forgotten. An id may also be a
    guideline's: it is removed, and its feedback stays. What is forgotten can be had back with
    rollback; what is purged can't.
    """
    from memalign_graph.local import open_local_checkpointer
    from memalign_graph.memory.operations import Forgotten

    if not (keys or author or feedback_id):
        raise InvalidInputError("ID: say what to forget: ids, --author or --feedback-id.")
    threads = _threads(place.memory, checkpoints, purge=purge)
    with place.open(model=model) as memory:
        episodes = {one.id: one for one in memory.episodes()}
        guidelines = {one.id: one for one in memory.guidelines()}
        known, is_whole = [*episodes, *guidelines], len(_NO_VERSION)
        # A purge may also mean what was forgotten before.
        ids = {
            key if purge and len(key) == is_whole else find_id(key, known, "guideline or episode")
            for key in keys or ()
        }
        by_hand = [guidelines[key] for key in ids if key in guidelines]
        if by_hand and (purge or author or feedback_id or len(by_hand) < len(ids)):
            raise InvalidInputError(
                f"ID: {by_hand[0].id[:8]} is a guideline: name guidelines alone, without --purge, "
                "--author and --feedback-id."
            )
        scale = place.criterion.criterion.scale
        told = [f"{one.id[:8]} {one.text}" for one in by_hand] or [
            f"{one.id[:8]} {one.author}: {_said(one, scale)}"
            for one in episodes.values()
            if (not ids or one.id in ids)
            and (author is None or one.author == author)
            and (not feedback_id or one.feedback_id in feedback_id)
        ]
        if not (told or purge):
            raise InvalidInputError(
                "ID: no feedback in the memory meets this: `memalign memory list` shows it."
            )
        if not yes:
            what = count(len(told), "guideline" if by_hand else "episode")
            _confirm(terminal, told, f"{'Erase for good' if purge else 'Forget'} {what}? [y/N]")
        if by_hand:
            for one in by_hand:
                memory.remove_guideline(one.id, author=by)
            forgotten = Forgotten([], [], by_hand, [])
        else:
            with open_local_checkpointer(threads) if threads else nullcontext() as checkpointer:
                forgotten = memory.forget(
                    ids or None,
                    author=author,
                    feedback_ids=feedback_id or None,
                    purge=purge,
                    checkpointer=checkpointer,
                    by=by,
                )
        _tell(terminal, forgotten, memory.version())
    return Status.DONE


def _threads(memory: Path, checkpoints: Path | None, *, purge: bool) -> Path | None:
    """Find the file of the threads that a purge erases, if any."""
    if checkpoints and not purge:
        raise InvalidInputError("--checkpoints: it is for --purge alone: give that, too.")
    if checkpoints:
        database_path(checkpoints, "--checkpoints", holds="checkpoints")
    path = checkpoints or memory
    return path if purge and has_table(path, "checkpoints") else None


def _confirm(terminal: Terminal, told: Sequence[str], question: str) -> None:
    if not terminal.can_ask():
        raise InvalidInputError(
            "--yes: there is nobody at a terminal to ask: give it to forget without being asked."
        )
    more = [f"and {len(told) - _FEW} more"] if len(told) > _FEW else []
    for line in [*told[:_FEW], *more]:
        terminal.note(one_line(line))
    if (terminal.ask(question) or "").lower() not in ("y", "yes"):
        raise InvalidInputError("nothing is forgotten: the answer was not yes.")


def _tell(terminal: Terminal, forgotten: "Forgotten", version: str) -> None:
    reduced, purged = forgotten.guidelines_reduced, forgotten.purged
    pending = [one for one in reduced if one.status == "pending"]
    groups = {
        "gone": forgotten.guidelines_removed,
        "distilled again from other feedback": [one for one in reduced if one not in pending],
        "yet to be distilled again from other feedback: by the next `memalign align`": pending,
    }
    lines = [
        f"{count(len(forgotten.episode_ids), 'episode')} {'erased' if purged else 'forgotten'}"
    ]
    for what, group in groups.items():
        lines += [f"{count(len(group), 'guideline')} {what}"] if group else []
        lines += [f"  {one_line(one.text)}" for one in group if one.text]
    document = {
        "episode_ids": forgotten.episode_ids,
        "unknown_ids": forgotten.unknown_ids,
        "guidelines_removed": _jsons(forgotten.guidelines_removed),
        "guidelines_reduced": _jsons(reduced),
        "purged": purged and asdict(purged),
        "version": version,
    }
    terminal.result(document, *lines, f"memory at version {version[:8]}")
    for warning in purged.warnings if purged else []:
        terminal.warn(warning.replace("the `checkpointer`", "with --checkpoints the threads"))
    if forgotten.unknown_ids:
        terminal.warn(f"nothing is there under {', '.join(forgotten.unknown_ids)}.")


def _cut(
    noun: str, header: Sequence[str], rows: Sequence[Sequence[str]], limit: int
) -> Iterator[str | Table]:
    """Show as many rows as are asked for, and how many more there are."""
    yield f"\n{count(len(rows), noun)}"
    if rows:
        yield table(header, rows[: limit or None])
    if limit and len(rows) > limit:
        yield f"… and {len(rows) - limit:,} more (--limit 0 shows all)"


def _jsons(items: Sequence["Guideline | Episode"]) -> list[dict[str, Any]]:
    return [item.to_json() for item in items]


def _said(episode: "Episode", scale: "Scale") -> str:
    value = None if episode.value is None else scale.show(episode.value)
    return one_line(" - ".join(text for text in (value, episode.rationale) if text))
