"""`memalign memory list | show | history | export`: nothing is changed."""

import os
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memalign_graph.cli.exits import ExitStatus
from memalign_graph.cli.opening import Place, read_place
from memalign_graph.cli.output import Output
from memalign_graph.cli.places import open_memory, output_path
from memalign_graph.cli.reports import count
from memalign_graph.cli.selecting import find_id
from memalign_graph.cli.tables import STDIN
from memalign_graph.cli.views import episode_text, guideline_text, history_text, memory_text
from memalign_graph.errors import InvalidInputError
from memalign_graph.memory.judge_memory import JudgeMemory


@contextmanager
def existing_memory(
    parsed: Namespace, model: str | None = None
) -> Iterator[tuple[Place, JudgeMemory]]:
    """Open the memory that the command line means, which has to be there."""
    place = read_place(parsed, must_exist=True)
    with open_memory(place.path, place.criterion, place.namespace, model=model) as memory:
        yield place, memory


def run_list(parsed: Namespace, output: Output) -> int:
    """List guidelines and episodes."""
    limit = read_limit(parsed.limit)
    with existing_memory(parsed) as (place, memory):
        guidelines = memory.guidelines()
        episodes = memory.episodes()
        version = memory.version()
    if output.as_json:
        output.document(
            {
                "criterion": place.criterion.to_json(),
                "namespace": list(place.namespace),
                "version": version,
                "guidelines": [one.to_json() for one in guidelines],
                "episodes": [one.to_json() for one in episodes],
            }
        )
    else:
        output.line(f"{place}, version {version[:8]}\n")
        output.line(memory_text(guidelines, episodes, place.criterion.scale, limit))
    return ExitStatus.DONE


def run_show(parsed: Namespace, output: Output) -> int:
    """Show one guideline or episode with its sources."""
    with existing_memory(parsed) as (place, memory):
        guidelines = {one.id: one for one in memory.guidelines()}
        episodes = {one.id: one for one in memory.episodes()}
    key = find_id(parsed.id, [*guidelines, *episodes], "guideline or episode")
    if key in guidelines:
        guideline = guidelines[key]
        sources = [episodes[one] for one in guideline.episode_ids if one in episodes]
        if output.as_json:
            document = {"type": "guideline", **guideline.to_json()}
            output.document({**document, "episodes": [one.to_json() for one in sources]})
        else:
            output.line(guideline_text(guideline, sources, place.criterion.scale))
        return ExitStatus.DONE
    episode = episodes[key]
    taught = [one for one in guidelines.values() if key in one.episode_ids]
    if output.as_json:
        document = {"type": "episode", **episode.to_json()}
        output.document({**document, "guidelines": [one.to_json() for one in taught]})
    else:
        output.line(episode_text(episode, taught, place.criterion.scale))
    return ExitStatus.DONE


def run_history(parsed: Namespace, output: Output) -> int:
    """List the commits."""
    limit = read_limit(parsed.limit)
    with existing_memory(parsed) as (place, memory):
        commits = memory.history()
        version = memory.version()
    if output.as_json:
        output.document(
            {"version": version, "commits": [one.model_dump(mode="json") for one in commits]}
        )
    else:
        output.line(f"{place}, version {version[:8]}\n")
        output.line(history_text(commits, limit))
    return ExitStatus.DONE


def run_export(parsed: Namespace, output: Output) -> int:
    """Write the memory as lines of JSON."""
    to_stdout = parsed.file == STDIN
    if to_stdout and output.as_json:
        raise InvalidInputError("--json: an export to stdout is JSON already: leave it out.")
    path = None if to_stdout else output_path(parsed.file, "FILE", parsed.criterion)
    with existing_memory(parsed) as (_, memory):
        text = memory.export_jsonl()
        done = {
            "file": parsed.file,
            "guidelines": len(memory.guidelines()),
            "episodes": len(memory.episodes()),
            "version": memory.version(),
        }
    if path is None:
        output.raw(text)
        return ExitStatus.DONE
    _replace(path, text)
    if output.as_json:
        output.document(done)
    else:
        output.line(
            f"{count(done['guidelines'], 'guideline')} and {count(done['episodes'], 'episode')} "
            f"in {parsed.file}"
        )
    return ExitStatus.DONE


def read_limit(given: int) -> int | None:
    """Read how many are shown."""
    if given < 0:
        raise InvalidInputError(f"--limit: {given} is not a whole number from 0 on; 0 is all.")
    return given or None


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all: an older export is not lost half-way."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # a pipe or a device
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
