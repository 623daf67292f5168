"""`memalign memory ...`: look into the memory, take back, go back, move."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from memalign_graph.cli.files import STDIN, check_output, find_id, has_table, read_text
from memalign_graph.cli.options import Place, grouped
from memalign_graph.cli.terminal import Terminal, count, table
from memalign_graph.errors import InvalidInputError

app = typer.Typer(
    help="Look into the memory, take back, go back, move. Wherever an id or a version is asked "
    "for, its beginning will do, from four characters on."
)
_NO_VERSION = "0" * 32
"""The version of a memory in which there is nothing."""


def _command(name: str | None = None) -> Callable[[Callable[..., None]], Any]:
    return lambda function: app.command(name)(grouped(function))


@_command("list")
def list_all(*, place: Place, terminal: Terminal) -> None:
    """List what it holds: guidelines and episodes."""
    with place.open() as memory:
        document = {
            "criterion": place.criterion.criterion,
            **place.context,
            "version": memory.version(),
            "guidelines": memory.guidelines(),
            "episodes": memory.episodes(),
        }
    terminal.result(document)


@_command()
def show(
    *, key: Annotated[str, typer.Argument(metavar="ID")], place: Place, terminal: Terminal
) -> None:
    """Show one guideline or episode in full, with its sources."""
    with place.open() as memory:
        rules = {guideline.id: guideline for guideline in memory.guidelines()}
        episodes = {episode.id: episode for episode in memory.episodes()}
    key = find_id(key, [*rules, *episodes], "guideline or episode")
    if key in rules:
        sources = [episodes[source] for source in rules[key].episode_ids if source in episodes]
        terminal.result({"type": "guideline", **dict(rules[key]), "episodes": sources})
    else:
        learned = [rule for rule in rules.values() if key in rule.episode_ids]
        terminal.result({"type": "episode", **dict(episodes[key]), "guidelines": learned})


@_command()
def history(*, place: Place, terminal: Terminal) -> None:
    """List its commits, newest first."""
    with place.open() as memory:
        terminal.result({"version": memory.version(), "commits": memory.history()})


@_command()
def export(
    *,
    place: Place,
    terminal: Terminal,
    file: Annotated[Path, typer.Argument(dir_okay=False, allow_dash=True)],
) -> None:
    """Write it as lines of JSON that people can read; - is stdout."""
    to_stdout = str(file) == STDIN
    if to_stdout and terminal.as_json:
        raise InvalidInputError("--json: an export to stdout is JSON already: leave it out.")
    if not to_stdout:
        check_output(file, "FILE", place.criterion.path)
    with place.open() as memory:
        text = memory.export_jsonl(None if to_stdout else file)
        done = {
            "file": str(file),
            "guidelines": len(memory.guidelines()),
            "episodes": len(memory.episodes()),
            "version": memory.version(),
        }
    if to_stdout:
        sys.stdout.write(text)
    else:
        terminal.result(done)


@_command("import")
def import_file(*, place: Place, terminal: Terminal, file: str) -> None:
    """Bring in what export wrote; what is there in a newer form stays. - is stdin."""
    from langgraph.store.memory import InMemoryStore

    from memalign_graph.memory.judge_memory import JudgeMemory

    lines = read_text(file, "FILE").split("\n")
    try:
        if not place.is_there:
            # Tried first where nothing is lost: a file that can't be used makes no memory.
            JudgeMemory(InMemoryStore(), place.criterion.criterion).import_jsonl(lines)
        with place.open(is_new=True) as memory:
            done = {
                "file": file,
                "version_before": memory.version(),
                "episodes": len(memory.import_jsonl(lines)),
                "guidelines": len(memory.guidelines()),
                "version": memory.version(),
            }
    except InvalidInputError as error:
        raise InvalidInputError(f"FILE: {file}: {error}") from error
    terminal.result(done)


@_command()
def rollback(*, place: Place, terminal: Terminal, version: str) -> None:
    """Make it again what it was at a version, as history or a judgment names it."""
    with place.open() as memory:
        versions = {commit.version for commit in memory.history()} | {_NO_VERSION}
        before = memory.version()
        missing = memory.rollback(find_id(version, versions, "version")).missing
        version = memory.version()
        changed = vars(memory.diff(before, version))
    terminal.result({"version_before": before, "version": version, "missing": missing, **changed})
    if missing:
        terminal.warn(f"{count(len(missing), 'item')} purged since stay away.")


@_command()
def forget(
    *,
    place: Place,
    terminal: Terminal,
    keys: Annotated[list[str] | None, typer.Argument(metavar="ID...")] = None,
    author: Annotated[str | None, typer.Option(help="All that this expert said.")] = None,
    purge: Annotated[bool, typer.Option("--purge", help="Erase it for good.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Take feedback back, and what was learned from it alone.

    Guidelines with other sources are distilled again from those by the next align. An id may also
    be a guideline's: it is removed, and its feedback stays. What is forgotten can be had back with
    rollback; what is purged can't.
    """
    from memalign_graph.local import open_checkpointer

    if not (keys or author):
        raise InvalidInputError("ID: say what to forget: ids, or --author.")
    has_threads = purge and has_table(place.memory, "checkpoints")
    with (
        place.open() as memory,
        open_checkpointer(place.memory) if has_threads else nullcontext() as checkpointer,
    ):
        episodes = {episode.id: episode for episode in memory.episodes()}
        guidelines = {guideline.id: guideline for guideline in memory.guidelines()}
        # A purge may also mean what was forgotten before: its id is asked for in full.
        ids = {
            key
            if purge and len(key) == len(_NO_VERSION)
            else find_id(key, [*episodes, *guidelines], "guideline or episode")
            for key in keys or ()
        }
        rules = [guidelines[key] for key in ids if key in guidelines]
        if rules and (purge or author or len(rules) < len(ids)):
            raise InvalidInputError(
                f"ID: {rules[0].id[:8]} is a guideline: name guidelines alone, without --purge and "
                "--author."
            )
        items: list[Any] = rules or [
            episode
            for episode in episodes.values()
            if (not ids or episode.id in ids) and author in (None, episode.author)
        ]
        if not (items or purge):
            raise InvalidInputError(
                "ID: no feedback in the memory meets this: `memalign memory list` shows it."
            )
        if not yes:
            what = count(len(items), "guideline" if rules else "episode")
            terminal.show(table([item.to_json() for item in items]))
            terminal.confirm(f"{'Erase for good' if purge else 'Forget'} {what}? [y/N]")
        if rules:
            for rule in rules:
                memory.remove_guideline(rule.id)
            document: dict[str, Any] = {"guidelines_removed": rules}
        else:
            done = memory.forget(ids or None, author=author, purge=purge, checkpointer=checkpointer)
            document = vars(done)
        terminal.result({**document, "version": memory.version()})
    purged = document.get("purged")
    for warning in purged.warnings if purged else ():
        terminal.warn(warning)
