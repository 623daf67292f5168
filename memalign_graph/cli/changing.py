"""`memalign memory forget | rollback | import`: changing a memory, each in a commit of its own."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from langgraph.store.memory import InMemoryStore

from memalign_graph.cli.exits import ExitStatus
from memalign_graph.cli.looking import existing_memory
from memalign_graph.cli.opening import Place, read_place
from memalign_graph.cli.options import told
from memalign_graph.cli.output import Output, can_ask
from memalign_graph.cli.places import choose_models, has_table, memory_path, open_memory
from memalign_graph.cli.reports import count, item
from memalign_graph.cli.selecting import find_id
from memalign_graph.cli.tables import STDIN
from memalign_graph.cli.views import episode_line
from memalign_graph.errors import InvalidInputError
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.memory.operations import Forgotten
from memalign_graph.types import Episode, Guideline

_FEW = 10
_NO_VERSION = "0" * 32
"""The version of a memory in which there is nothing."""


@dataclass(frozen=True)
class _Wanted:
    """What is to be forgotten."""

    episodes: list[Episode]
    """The episodes that are meant, as far as they are there."""

    guidelines: list[Guideline]
    """Guidelines to be removed."""

    selection: dict[str, Any] | None
    """Which episodes, as `JudgeMemory.forget` takes it; None for none."""


def run_forget(parsed: Namespace, output: Output) -> int:
    """Take feedback back, or remove guidelines."""
    if not (parsed.ids or parsed.author or parsed.feedback_id):
        raise InvalidInputError(
            "ID: say what to forget: ids, --author or --feedback-id; `memalign memory list` shows "
            "the ids."
        )
    if parsed.checkpoints and not parsed.purge:
        raise InvalidInputError("--checkpoints: it is for --purge alone: give that, too.")
    if parsed.model:
        choose_models(parsed.model, None)
    with existing_memory(parsed, parsed.model) as (place, memory):
        wanted = _wanted(parsed, memory)
        _confirm(parsed, place, wanted, output)
        removed = [memory.remove_guideline(one.id, author=parsed.by) for one in wanted.guidelines]
        forgotten = None
        if wanted.selection is not None:
            with _checkpointer(parsed, place) as checkpointer:
                forgotten = memory.forget(
                    **wanted.selection,
                    purge=parsed.purge,
                    checkpointer=checkpointer,
                    by=parsed.by,
                )
        version = memory.version()
    _tell_forgotten(forgotten, removed, version, output, parsed)
    return ExitStatus.DONE


def run_rollback(parsed: Namespace, output: Output) -> int:
    """Make the memory again what it was at a version."""
    with existing_memory(parsed) as (_, memory):
        versions = {one.version for one in memory.history()} | {_NO_VERSION}
        wanted = find_id(parsed.version, versions, "version")
        before = memory.version()
        snapshot = memory.rollback(wanted, author=parsed.by)
        now = memory.version()
        changed = memory.diff(before, now)
    kinds: dict[str, Any] = {"episodes": changed.episodes, "guidelines": changed.guidelines}
    if output.as_json:
        output.document(
            {
                "version_before": before,
                "version": now,
                **{
                    name: {
                        "restored": [one.id for one in kind.added],
                        "removed": [one.id for one in kind.removed],
                        "changed": [one.after.id for one in kind.changed],
                    }
                    for name, kind in kinds.items()
                },
                "missing": snapshot.missing,
            }
        )
        return ExitStatus.DONE
    if before == now:
        output.line(f"nothing to change: the memory is at version {now[:8]}")
    else:
        output.line(f"memory from version {before[:8]} to {now[:8]}")
        for name, kind in kinds.items():
            output.line(
                f"{name}: {len(kind.added)} restored, {len(kind.removed)} removed, "
                f"{len(kind.changed)} changed"
            )
    if snapshot.missing:
        output.warn(f"{count(len(snapshot.missing), 'item')} purged since stay away.")
    return ExitStatus.DONE


def run_import(parsed: Namespace, output: Output) -> int:
    """Bring in an export."""
    place = read_place(parsed, must_exist=False)
    lines = _read_export(parsed.file)
    try:
        if not place.path.exists():
            # Tried first where nothing is lost: a file that can't be used makes no memory.
            JudgeMemory(InMemoryStore(), place.criterion).import_jsonl(lines, author=parsed.by)
        with open_memory(place.path, place.criterion, place.namespace, must_exist=False) as memory:
            before = memory.version()
            episodes = memory.import_jsonl(lines, author=parsed.by)
            done = {
                "file": parsed.file,
                "episodes": len(episodes),
                "guidelines": len(memory.guidelines()),
                "version_before": before,
                "version": memory.version(),
            }
    except InvalidInputError as error:
        name = "the standard input" if parsed.file == STDIN else parsed.file
        raise InvalidInputError(f"FILE: {name}: {error}") from error
    if output.as_json:
        output.document(done)
    else:
        output.line(
            f"{count(len(episodes), 'episode')} imported; the memory holds "
            f"{count(done['guidelines'], 'guideline')}, version {str(done['version'])[:8]}"
        )
    return ExitStatus.DONE


def _wanted(parsed: Namespace, memory: JudgeMemory) -> _Wanted:
    """Find what is meant; a purge may also mean what was forgotten before."""
    episodes = {one.id: one for one in memory.episodes()}
    guidelines = {one.id: one for one in memory.guidelines()}
    known = {**episodes, **guidelines}
    ids: list[str] = []
    for given in parsed.ids:
        is_whole = parsed.purge and len(given) == len(_NO_VERSION) and given not in known
        ids.append(given if is_whole else find_id(given, known, "guideline or episode"))
    ids = list(dict.fromkeys(ids))
    by_hand = [guidelines[key] for key in ids if key in guidelines]
    if by_hand and (parsed.purge or parsed.author or parsed.feedback_id):
        raise InvalidInputError(
            f"ID: {by_hand[0].id[:8]} is a guideline: --purge, --author and --feedback-id are for "
            "feedback; remove the guideline by its id alone."
        )
    episode_ids = [key for key in ids if key not in guidelines]
    if not (episode_ids or parsed.author or parsed.feedback_id):
        return _Wanted([], by_hand, None)
    selection = told(
        episode_ids=episode_ids or None, feedback_ids=parsed.feedback_id, author=parsed.author
    )
    meant = [one for one in episodes.values() if _meets(one, selection)]
    if not meant and not parsed.purge:
        raise InvalidInputError(
            "ID: no feedback in the memory meets this: `memalign memory list` shows what there is."
        )
    return _Wanted(meant, by_hand, selection)


def _meets(episode: Episode, selection: dict[str, Any]) -> bool:
    author = selection.get("author")
    return (
        ("episode_ids" not in selection or episode.id in selection["episode_ids"])
        and ("feedback_ids" not in selection or episode.feedback_id in selection["feedback_ids"])
        and (author is None or episode.author == author)
    )


def _confirm(parsed: Namespace, place: Place, wanted: _Wanted, output: Output) -> None:
    """Ask whether this is what is wanted."""
    if parsed.yes:
        return
    if not can_ask():
        raise InvalidInputError(
            "--yes: there is nobody at a terminal to ask: give it to forget without being asked."
        )
    for one in wanted.episodes[:_FEW]:
        output.note(episode_line(one, place.criterion.scale))
    if len(wanted.episodes) > _FEW:
        output.note(f"and {len(wanted.episodes) - _FEW} more")
    for guideline in wanted.guidelines:
        output.note(f"{guideline.id[:8]} {guideline.text}")
    verb = "Erase for good" if parsed.purge else "Forget"
    what = [
        *([count(len(wanted.episodes), "episode")] if wanted.selection is not None else []),
        *([count(len(wanted.guidelines), "guideline")] if wanted.guidelines else []),
    ]
    if output.ask(f"{verb} {' and '.join(what)}? [y/N]").lower() not in ("y", "yes"):
        raise InvalidInputError("nothing is forgotten: the answer was not yes.")


@contextmanager
def _checkpointer(parsed: Namespace, place: Place) -> Iterator[Any]:
    """Open the threads that a purge erases, where there are any."""
    path = place.path
    if parsed.checkpoints:
        path = memory_path(parsed.checkpoints, must_exist=False, option="--checkpoints")
    if not parsed.purge or not (parsed.checkpoints or has_table(path, "checkpoints")):
        yield None
        return
    if not path.exists() or not has_table(path, "checkpoints"):
        raise InvalidInputError(f"--checkpoints: {path} holds no threads: name another file.")
    from memalign_graph.local import open_local_checkpointer

    with open_local_checkpointer(path) as checkpointer:
        yield checkpointer


def _tell_forgotten(
    forgotten: Forgotten | None,
    removed: Sequence[Guideline],
    version: str,
    output: Output,
    parsed: Namespace,
) -> None:
    if output.as_json:
        output.document(
            {
                "episode_ids": forgotten.episode_ids if forgotten else [],
                "unknown_ids": forgotten.unknown_ids if forgotten else [],
                "guidelines_removed": _jsons(
                    [*removed, *(forgotten.guidelines_removed if forgotten else [])]
                ),
                "guidelines_reduced": _jsons(forgotten.guidelines_reduced if forgotten else []),
                "purged": asdict(forgotten.purged) if forgotten and forgotten.purged else None,
                "version": version,
            }
        )
    else:
        for line in _forgotten_lines(forgotten, removed, purges=parsed.purge):
            output.line(line)
        output.line(f"memory at version {version[:8]}")
    for warning in forgotten.purged.warnings if forgotten and forgotten.purged else []:
        output.warn(warning.replace("the `checkpointer`", "with --checkpoints the threads"))
    if forgotten and forgotten.unknown_ids:
        output.warn(f"nothing is there under {', '.join(forgotten.unknown_ids)}.")


def _forgotten_lines(
    forgotten: Forgotten | None, removed: Sequence[Guideline], *, purges: bool
) -> Iterator[str]:
    if forgotten is not None:
        verb = "erased" if purges else "forgotten"
        yield f"{count(len(forgotten.episode_ids), 'episode')} {verb}"
        gone = forgotten.guidelines_removed
        yield from _listed(gone, "rested on that alone, and went with it")
        reduced = forgotten.guidelines_reduced
        pending = [one for one in reduced if one.status == "pending"]
        again = [one for one in reduced if one.status == "standing"]
        if pending:
            yield (
                f"{count(len(pending), 'guideline')} yet to be distilled again from other "
                "feedback: by the next `memalign align`, or `memalign align --pending`"
            )
        yield from _listed(again, "distilled again from other feedback")
    yield from _listed(removed, "removed; the feedback stays")


def _listed(guidelines: Sequence[Guideline], what: str) -> Iterator[str]:
    if guidelines:
        yield f"{count(len(guidelines), 'guideline')} {what}"
    for one in guidelines:
        if one.text:
            yield item(one.text, indent=2)


def _jsons(guidelines: Sequence[Guideline]) -> list[dict[str, Any]]:
    return [one.to_json() for one in guidelines]


def _read_export(name: str) -> list[str]:
    try:
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        return data.decode("utf-8-sig").split("\n")
    except FileNotFoundError as error:
        raise InvalidInputError(f"FILE: there is no file {name}.") from error
    except IsADirectoryError as error:
        raise InvalidInputError(f"FILE: {name} is a folder: name a file.") from error
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"FILE: {name} can't be read: {error}.") from error
