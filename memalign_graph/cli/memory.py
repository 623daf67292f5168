"""`memalign memory ...`: show, export, import, roll back and forget."""

import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from memalign_graph.cli.files import STDIN, check_output_path, errors_in, has_table, read_text
from memalign_graph.cli.options import MemoryLocation, Status, as_command, option_errors
from memalign_graph.cli.terminal import Terminal, pluralize, table
from memalign_graph.errors import InvalidInputError
from memalign_graph.local.stores import open_checkpointer

app = typer.Typer(
    help="Show, export, import, roll back and forget. For an id or a version, its first four "
    "characters or more are enough.",
    no_args_is_help=True,
)
_MIN_ID_CHARS = 4


def _command(name: str | None = None) -> Callable[[Callable[..., int | None]], Any]:
    return lambda function: app.command(name)(as_command(function))


def find_id(beginning: str, ids: Iterable[str], what: str) -> str:
    """Return the one id with this beginning."""
    typed = beginning.strip().lower()
    matches = sorted({key for key in ids if key.startswith(typed)})
    if typed in matches:
        return typed
    if len(matches) == 1 and len(typed) >= _MIN_ID_CHARS:
        return matches[0]
    raise InvalidInputError(
        f"ID: {beginning!r} names {len(matches) or 'no'} {what}: give {_MIN_ID_CHARS} characters "
        "or more of one id; `memalign memory list` and `history` show them."
    )


@_command("list")
def list_all(*, location: MemoryLocation, terminal: Terminal) -> None:
    """List the memory's guidelines and episodes."""
    with location.open() as memory:
        document = {
            "criterion": location.criterion.criterion,
            **location.context,
            "version": memory.version(),
            "guidelines": memory.guidelines(),
            "episodes": memory.episodes(),
        }
    terminal.result(document)


@_command()
def show(
    *,
    key: Annotated[str, typer.Argument(metavar="ID")],
    location: MemoryLocation,
    terminal: Terminal,
) -> None:
    """Show one guideline or episode in full, with its sources."""
    with location.open() as memory:
        guidelines = {guideline.id: guideline for guideline in memory.guidelines()}
        episodes = {episode.id: episode for episode in memory.episodes()}
    key = find_id(key, [*guidelines, *episodes], "guidelines or episodes")
    if key in guidelines:
        sources = [episodes[source] for source in guidelines[key].episode_ids if source in episodes]
        terminal.result({"type": "guideline", **dict(guidelines[key]), "episodes": sources})
    else:
        learned = [item for item in guidelines.values() if key in item.episode_ids]
        terminal.result({"type": "episode", **dict(episodes[key]), "guidelines": learned})


@_command()
def history(*, location: MemoryLocation, terminal: Terminal) -> None:
    """List the memory's commits, newest first."""
    with location.open() as memory:
        commits = memory.history()
        # The first characters of a commit's id are the time, so short ids would all look alike.
        rows = [{**commit.to_json(), "id": None} for commit in commits]
        result = {"version": memory.version(), "commits": commits}
        terminal.result(result, shown=[table(rows)] if rows else [])


@_command()
def export(
    *,
    location: MemoryLocation,
    terminal: Terminal,
    file: Annotated[Path, typer.Argument(dir_okay=False, allow_dash=True)],
) -> None:
    """Write the memory as lines of JSON; - is stdout."""
    to_stdout = str(file) == STDIN
    if not to_stdout:
        check_output_path(file, "FILE", location.criterion.path)
    with location.open() as memory, option_errors(path="FILE"):
        text = memory.export_jsonl(None if to_stdout else file)
        done = {
            "file": str(file),
            "guidelines": len(memory.guidelines()),
            "episodes": len(memory.episodes()),
            "version": memory.version(),
        }
    if to_stdout:
        sys.stdout.buffer.write(text.encode())
    else:
        terminal.result(done)


@_command("import")
def import_file(*, location: MemoryLocation, terminal: Terminal, file: str) -> None:
    """Import what export wrote; newer items of the memory stay. - is stdin."""
    from langgraph.store.memory import InMemoryStore

    from memalign_graph.memory.judge_memory import JudgeMemory

    location.check(must_exist=False)
    with errors_in(f"FILE: {file}"):
        lines = read_text(file).split("\n")
        if not has_table(location.memory, "store"):
            # First into a memory that is thrown away, so that an unusable file creates none.
            JudgeMemory(InMemoryStore(), location.criterion.criterion).import_jsonl(lines)
    with location.open(may_create=True) as memory:
        before = memory.version()
        with errors_in(f"FILE: {file}"):
            episodes = memory.import_jsonl(lines)
        document = {
            "file": file,
            "version_before": before,
            "episodes": len(episodes),
            "guidelines": len(memory.guidelines()),
            "version": memory.version(),
        }
    terminal.result(document)


@_command()
def rollback(*, location: MemoryLocation, terminal: Terminal, version: str) -> None:
    """Return to a version that history or a judgment names."""
    from memalign_graph.memory.facts import EMPTY_VERSION

    with location.open() as memory:
        before, version = memory.version(), version.strip().lower()
        if len(version) != len(EMPTY_VERSION):
            versions = {commit.version for commit in memory.history()} | {EMPTY_VERSION}
            version = find_id(version, versions, "versions")
        with option_errors(version="VERSION"):
            missing = memory.rollback(version).missing
        version = memory.version()
        changed = vars(memory.diff(before, version))
    terminal.result({"version_before": before, "version": version, "missing": missing, **changed})
    if missing:
        terminal.warn(f"{pluralize(len(missing), 'item')} cannot be restored: purged since.")


@_command()
def forget(
    *,
    location: MemoryLocation,
    terminal: Terminal,
    keys: Annotated[list[str] | None, typer.Argument(metavar="ID...")] = None,
    author: str | None = None,
    purge: Annotated[bool, typer.Option("--purge")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
) -> int:
    """Forget feedback, and what was learned from it alone.

    Guidelines with other sources are distilled again by the next align. An id may also be a
    guideline's: it is removed, and its feedback stays. `rollback` restores what was forgotten, but
    not what was purged.

    Options:
        author: Forget all feedback of this expert.
        purge: Erase it for good; rollback cannot restore it.
        yes: Do not ask for confirmation.
    """
    from memalign_graph.memory.facts import EMPTY_VERSION

    if not (keys or author):
        raise InvalidInputError("ID: give the ids to forget, or --author.")
    has_threads = purge and has_table(location.memory, "checkpoints")
    with (
        location.open() as memory,
        open_checkpointer(location.memory) if has_threads else nullcontext() as checkpointer,
    ):
        episodes = {episode.id: episode for episode in memory.episodes()}
        guidelines = {guideline.id: guideline for guideline in memory.guidelines()}
        # A purge may also name feedback that was forgotten before, by its full id.
        ids = {
            key
            if purge and len(key) == len(EMPTY_VERSION)
            else find_id(key, [*episodes, *guidelines], "guidelines or episodes")
            for key in (typed.strip().lower() for typed in keys or ())
        }
        removed = [guidelines[key] for key in ids if key in guidelines]
        if removed and (purge or author or len(removed) < len(ids)):
            raise InvalidInputError(
                f"ID: {removed[0].id[:8]} is a guideline. Give guidelines alone, without --purge "
                "and --author."
            )
        items: list[Any] = removed or [
            episode
            for episode in episodes.values()
            if (not ids or episode.id in ids) and author in (None, episode.author)
        ]
        if not (items or purge):
            raise InvalidInputError(
                "ID: no feedback in the memory matches: `memalign memory list` shows it."
            )
        if not yes:
            what = pluralize(len(items), "guideline" if removed else "episode")
            terminal.show(table([item.to_json() for item in items]))
            terminal.confirm(f"{'Erase for good' if purge else 'Forget'} {what}? [y/N]")
        if removed:
            for guideline in removed:
                memory.remove_guideline(guideline.id)
            terminal.result({"guidelines_removed": removed, "version": memory.version()})
            return Status.DONE
        done = memory.forget(ids or None, author=author, purge=purge, checkpointer=checkpointer)
        terminal.result({**vars(done), "version": memory.version()})
    if (purged := done.purged) is None:
        return Status.DONE
    for warning in purged.warnings:
        terminal.warn(warning)
    if done.unknown_ids or not (done.episode_ids or purged.commits or purged.thread_ids):
        what = ", ".join(done.unknown_ids) or f"--author {author}"
        terminal.warn(f"{what}: there was no such feedback to erase. Check the name or id.")
        return Status.PARTIAL
    return Status.DONE
