"""Export and import a memory as JSON lines.

A head, then guidelines, episodes, hashes of replaced or forgotten feedback, answers to check
questions, and vectors, so that an import calls no model.
"""

import base64
import json
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from os import PathLike
from pathlib import Path
from shutil import copymode
from typing import Annotated, Any
from uuid import uuid4

from pydantic import Field, ValidationError

from memalign_graph.errors import (
    EmbeddingError,
    InvalidInputError,
    describe_validation_error,
    write_errors,
)
from memalign_graph.identity import check_json, episode_id
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.facts import PURGE, GuidelineRevision, Item, filter_answers
from memalign_graph.memory.feedback import by_episode, feedback_in_log
from memalign_graph.memory.guidelines import check_guideline_text, check_name, guideline_with_text
from memalign_graph.memory.index import decode_vector, normalize_vectors, retrieval_text, vector_key
from memalign_graph.memory.memory_state import merge_feedback
from memalign_graph.memory.purge import write_fact
from memalign_graph.memory.recall import embedder_namespaces, first_item
from memalign_graph.types import Criterion, Episode, FrozenModel, Guideline

logger = logging.getLogger(__name__)

FORMAT = 1
_DEPTH = 10
"""How much deeper a value is nested in a line than in its example."""

_LEFT_OUT = (
    "Importing into %r: %d item(s) were not imported unchanged. This memory has newer ones or a "
    "guideline with the same text, or they are guidelines with missing sources: these are "
    "distilled again from the other sources, or left out."
)


async def export_jsonl(io: IO, access: MemoryAccess) -> str:
    view = await access.refresh(io)
    guidelines = [each.model_dump(mode="json", exclude={"worth"}) for each in view.guidelines]
    episodes = list(view.episodes().values())
    vectors = await _all_vectors(io, access, episodes)
    cases = {episode.example_id for episode in episodes}
    answers = filter_answers(view.answers(), cases.__contains__)
    ids = sorted(view.answer_ids())
    facts, rows = view.facts()
    # A hash can confirm a guess: there are none of purged feedback.
    purged = {key for fact in facts if fact.reason == PURGE for key in fact.forgotten}
    left = {(row.id, row.feedback_hash) for row in rows.values()}
    gone = feedback_in_log(view).keys() - {(episode.id, episode.word) for episode in episodes}
    repeated = by_episode(each for each in gone if each in left or each[0] not in purged)
    head = {
        "type": "memory",
        "format": FORMAT,
        "criterion": access.criterion.to_json(),
        "version": view.version,
    }
    lines = [
        head,
        *({"type": "guideline", **fields} for fields in guidelines),
        *({"type": "episode", **episode.to_json()} for episode in episodes),
        *([{"type": "repeated", "hashes": repeated}] if repeated else []),
        *([{"type": "answers", "ids": ids, "answers": answers}] if ids else []),
        *({"type": "vector", **vector} for vector in vectors),
    ]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


async def import_jsonl(
    io: IO, access: MemoryAccess, lines: Iterable[str], *, author: str | None = None
) -> list[Episode]:
    """Import an exported memory; ids, times and sources stay."""
    author = check_name(author, "author")
    read = _read_lines(access.criterion, lines)
    await _store_vectors(io, access, read)
    view = await access.refresh(io)
    purges, stored = view.purges(), view.episodes(read.episodes)
    merged = {key: merge_feedback(stored.get(key), new) for key, new in read.episodes.items()}
    changed = [
        read.episodes[key].model_copy(update={"status": "pending"})
        for key, episode in merged.items()
        if episode != stored.get(key)
    ]
    distilled = _distilled(read.episodes) - _distilled(stored)
    # The sources of an imported guideline are those that this memory has after the import.
    newer = {key for key, episode in merged.items() if episode.word != read.episodes[key].word}
    hashes = {key: each for key, each in view.feedback_hashes().items() if key not in merged}
    hashes |= {key: view.row_of(merged[key]).feedback_hash for key in merged.keys() - newer}
    _, active_guidelines, revisions = view.current
    guidelines: list[GuidelineRevision] = []
    for key, guideline in read.guidelines.items():
        stays = key in revisions and _rank(revisions[key]) >= _rank(guideline)
        if stays or guideline_with_text(active_guidelines, guideline.text, except_id=key):
            continue
        sources = {each: hashes[each] for each in guideline.episode_ids if each in hashes}
        is_whole = len(sources) == len(guideline.episode_ids)
        if sources or is_whole:
            new = guideline if is_whole else guideline.model_copy(update={"status": "pending"})
            guidelines.append(GuidelineRevision.of(new, sources, replaces=revisions.get(key)))
    new_ids = read.answer_ids - view.answer_ids()
    cases = {row.example_id for row in view.rows()}
    cases |= {episode.example_id for episode in read.episodes.values()}
    change = {
        "read": {key: hashes[key] for key, _ in sorted(distilled) if key in hashes},
        "guidelines": guidelines,
        "repeated": by_episode(read.repeated - feedback_in_log(view).keys()),
        "answer_ids": sorted(new_ids),
        "answers": filter_answers(read.answers if new_ids else {}, cases.__contains__),
    }
    if changed or any(change.values()):
        await write_fact(io, access, purges, "import", change, author=author, episodes=changed)
    left_out = len(newer) + sum(each not in view.guidelines for each in read.guidelines.values())
    if left_out:
        logger.warning(_LEFT_OUT, access.criterion.name, left_out)
    return list(view.episodes(read.episodes).values())


def _rank(guideline: Guideline | GuidelineRevision) -> tuple[bool, datetime]:
    """Rank wordings of one guideline: by hand first, then newer ones."""
    return guideline.origin == "expert", guideline.updated_at


def _distilled(episodes: Mapping[str, Episode]) -> set[tuple[str, str]]:
    return {(key, each.word) for key, each in episodes.items() if each.status == "distilled"}


def _read_lines(criterion: Criterion, lines: Iterable[str]) -> "_ImportReader":
    """Parse and check all lines."""
    read = _ImportReader(criterion)
    for number, line in enumerate(lines, start=1):
        try:
            read.line(line)
        except ValidationError as error:
            raise InvalidInputError(f"line {number}: {describe_validation_error(error)}") from error
        except (EmbeddingError, ValueError) as error:
            raise InvalidInputError(f"line {number}: {error}") from error
    if not read.has_head:
        raise InvalidInputError("source: it has no lines. Give an export by `export_jsonl()`.")
    return read


async def _store_vectors(io: IO, access: MemoryAccess, read: "_ImportReader") -> None:
    for embedder, items in read.vectors.items():
        old = await first_item(io, access, access.layout.vectors(embedder))
        dimensions = {len(decode_vector(item["vector"])) for item in (old, *items.values()) if item}
        if len(dimensions) > 1:
            raise InvalidInputError(
                f"vector: the vectors of the embeddings {embedder} have different dimensions "
                f"({', '.join(map(str, sorted(dimensions)))}), so they are of different embedders."
            )
    for embedder, items in read.vectors.items():
        # A purge finds vectors by the texts of cases.
        keys = items.keys() & _vector_keys(embedder, read.episodes.values())
        await access.put(io, access.layout.vectors(embedder), {key: items[key] for key in keys})


_Text = Annotated[str, Field(min_length=1)]


class _Vector(FrozenModel):
    """A line of the vector of a text."""

    key: _Text
    embedder: _Text
    vector: _Text


class _Answers(FrozenModel):
    """A line of answers to check questions, and the facts that stored them."""

    ids: list[str] = Field(min_length=1)
    answers: dict[str, dict[str, Annotated[float, Field(ge=0, le=1)]]]


class _Repeated(FrozenModel):
    """A line of hashes of replaced or forgotten feedback, by episode id."""

    hashes: dict[str, list[str]]


class _ImportReader:
    """The parsed and checked lines of an export."""

    def __init__(self, criterion: Criterion) -> None:
        self._criterion = criterion
        self.has_head = False
        self.episodes: dict[str, Episode] = {}
        self.guidelines: dict[str, Guideline] = {}
        self.vectors: dict[str, dict[str, Item]] = {}
        self.repeated: set[tuple[str, str]] = set()
        self.answer_ids: set[str] = set()
        self.answers: dict[str, dict[str, float]] = {}

    def line(self, text: Any) -> None:
        """Parse a line; raises ValueError."""
        if not isinstance(text, str):
            raise ValueError(f"expected text, got {type(text).__name__}.")
        text = text.removeprefix("\ufeff")  # editors write it before the first line
        if not text.strip():
            return
        fields = _parse(text)
        kind = fields.pop("type", None)
        if not self.has_head:
            self._head(kind, fields)
            return
        match kind:
            case "guideline":
                # Earlier versions also exported retired guidelines, and ones without text.
                replaced = [fields.pop(name, None) for name in ("superseded_by", "reason")]
                is_blank = fields.get("status") == "pending" and not fields.get("text")
                if not any(replaced) and not is_blank and fields.get("status") != "superseded":
                    self._guideline(Guideline.model_validate(fields))
            case "episode":
                self._episode(Episode.model_validate(fields))
            case "repeated":
                hashes = _Repeated.model_validate(fields).hashes
                self.repeated = {(key, each) for key, several in hashes.items() for each in several}
            case "answers":
                read = _Answers.model_validate(fields)
                self.answer_ids, self.answers = {*read.ids}, read.answers
            case "vector":
                self._vector(_Vector.model_validate(fields))
            case _:
                raise ValueError(f"unknown type {kind!r}.")

    def _head(self, kind: Any, fields: dict[str, Any]) -> None:
        if kind != "memory" or fields.get("format") != FORMAT:
            raise ValueError(
                f'an export begins with a line of type "memory" and format {FORMAT}. Give an '
                "export by `export_jsonl()`."
            )
        own, theirs = self._criterion, fields.get("criterion")
        name = theirs.get("name") if isinstance(theirs, dict) else None
        if name != own.name:
            raise ValueError(
                f"it is the memory of criterion {name!r}, not of {own.name!r}. Import it there."
            )
        self.has_head = True

    def _guideline(self, guideline: Guideline) -> None:
        if not guideline.id:
            raise ValueError("id: expected text, not empty.")
        check_guideline_text(guideline.text, guideline.question)
        self.guidelines[guideline.id] = guideline

    def _episode(self, episode: Episode) -> None:
        right = episode_id(episode.example.id, episode.author, episode.feedback_id)
        if (episode.id, episode.example_id) != (right, episode.example.id):
            raise ValueError(
                "id: the episode's id does not match its example and author. To change these, use "
                "`remember`."
            )
        if episode.value is None and episode.rationale is None:
            raise ValueError("the episode has neither a value nor a rationale. Remove the line.")
        if episode.value is not None:
            value = self._criterion.scale.validate_stored(episode.value)
            episode = episode.model_copy(update={"value": value})
        self.episodes[episode.id] = episode

    def _vector(self, item: _Vector) -> None:
        base64.b64decode(item.vector, validate=True)
        normalize_vectors([decode_vector(item.vector)], 1, item.embedder)
        self.vectors.setdefault(item.embedder, {})[item.key] = item.model_dump()


def _parse(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply.") from error
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object.")
    check_json(fields, "the line", depth=-_DEPTH)
    return fields


async def _all_vectors(io: IO, access: MemoryAccess, episodes: list[Episode]) -> list[Item]:
    """Read the vectors of the episodes' texts, of all embedders, in a stable order."""
    vectors: list[Item] = []
    for embedder, namespace in (await embedder_namespaces(io, access)).items():
        stored = await access.get(io, namespace, _vector_keys(embedder, episodes))
        vectors += stored.values()
    return vectors


def _vector_keys(embedder: str, episodes: Iterable[Episode]) -> list[str]:
    return [vector_key(embedder, retrieval_text(episode.example)[0]) for episode in episodes]


def write_file(path: str | PathLike[str], text: str) -> None:
    """Write a file; an earlier one with this name stays until the new one is whole."""
    with write_errors(path):
        target = Path(path).resolve()
        if target.exists() and not target.is_file():  # a device or a pipe
            target.write_text(text, encoding="utf-8", errors="replace")
            return
        # A name that nobody has, so that no other process writes the same part.
        part = target.with_name(f"{target.name}.{uuid4().hex}.part")
        try:
            part.touch()
            if target.exists():
                copymode(target, part)  # before it has content
            part.write_text(text, encoding="utf-8", errors="replace")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
