"""Export and import: a memory as lines of JSON that people can read.

First a line that says what follows, then guidelines and episodes, hashes of feedback that was
superseded or forgotten, what models answered to checks, and last the vectors, so that a memory
moves to another store or namespace without any call.
"""

import base64
import json
import logging
from collections.abc import Container, Iterable, Mapping
from typing import Annotated, Any

from langgraph.store.base import SearchOp
from pydantic import Field, ValidationError

from memalign_graph.errors import EmbeddingError, InvalidInputError, explain
from memalign_graph.identity import check_json, episode_id
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import embedder_namespaces
from memalign_graph.memory.facts import PURGE, GuidelineRevision, Item
from memalign_graph.memory.feedback import by_episode, feedback_in_log
from memalign_graph.memory.feedback_merge import merge_feedback
from memalign_graph.memory.guidelines import MAX_QUESTION_CHARS, check_guideline_text, check_name
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.index.vectors import decode_vector, normalised, vector_key
from memalign_graph.types import Episode, FrozenModel, Guideline

logger = logging.getLogger(__name__)

FORMAT = 1
"""The number of the format, in the first line."""

_DEPTH = 10
"""How much deeper a value may lie in a line than in the example it belongs to."""


async def export_jsonl(io: IO, access: MemoryAccess) -> str:
    """Write a memory as lines of JSON."""
    view = await access.refresh(io)
    guidelines, episodes = list(view.guidelines), list(view.episodes().values())
    vectors = await _all_vectors(io, access, episodes)
    answers = _answers_on(view.answers(), {one.example_id for one in episodes})
    ids = sorted(view.answer_ids())
    # A hash confirms a guess: of what was purged there is none.
    purged = {key for fact in view.facts()[0] if fact.reason == PURGE for key in fact.forgotten}
    gone = feedback_in_log(view) - {(one.id, one.word) for one in episodes}
    repeated = by_episode((key, word) for key, word in gone if key not in purged)
    head = {
        "type": "memory",
        "format": FORMAT,
        "criterion": access.criterion.to_json(),
        "version": view.version,
    }
    lines = [
        head,
        *(
            {"type": "guideline", **one.model_dump(mode="json", exclude={"worth"})}
            for one in guidelines
        ),
        *({"type": "episode", **one.to_json()} for one in episodes),
        *([{"type": "repeated", "hashes": repeated}] if repeated else []),
        *([{"type": "answers", "ids": ids, "answers": answers}] if ids else []),
        *({"type": "vector", **one} for one in vectors),
    ]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


async def import_jsonl(
    io: IO, access: MemoryAccess, lines: Iterable[str], *, author: str | None = None
) -> list[Episode]:
    """Bring an exported memory into this one; ids, times and sources stay as they are."""
    author = check_name(author, "author")
    read = _read_lines(access, lines)
    await _store_vectors(io, access, read)
    view = await access.refresh(io)
    stored = view.episodes(read.episodes)
    standing = {guideline.id: guideline for guideline in view.guidelines}
    episodes = {key: merge_feedback(stored.get(key), one) for key, one in read.episodes.items()}
    words = [
        read.episodes[key].model_copy(update={"status": "pending"})
        for key, one in episodes.items()
        if one != stored.get(key)
    ]
    # A rule comes with the words that it rests on, or without those of its cases that are not here.
    hashes = {
        key: view.feedback_record(one)["word"]
        for key, one in episodes.items()
        if one.word == read.episodes[key].word
    }
    named = {key for one in read.guidelines.values() for key in one.episode_ids}
    here = view.feedback_hashes()
    hashes |= {key: here[key] for key in named - episodes.keys() if key in here}
    guidelines: list[GuidelineRevision] = []
    kept = [key for key, one in read.episodes.items() if one.word != episodes[key].word]
    left_out = 0
    for key, guideline in read.guidelines.items():
        known = standing.get(key)
        sources = {one: hashes[one] for one in guideline.episode_ids if one in hashes}
        if known is not None and known.updated_at >= guideline.updated_at:
            kept += [key] if known != guideline else []
        elif guideline.episode_ids and not sources:
            left_out += 1
        else:
            is_whole = len(sources) == len(guideline.episode_ids)
            one = guideline if is_whole else guideline.model_copy(update={"status": "pending"})
            left_out += not is_whole
            guidelines.append(GuidelineRevision.of(one, sources, replaces=known))
    if kept:
        logger.warning(
            "Importing into %r: %d item(s) are here in a version that is not older, which stays: "
            "edit them in the memory, not in its export.",
            access.criterion.name,
            len(kept),
        )
    if left_out:
        logger.warning(
            "Importing into %r: %d guideline(s) rest on feedback that is not in the lines, or has "
            "a newer word here: they are left out, or worded anew from what is left.",
            access.criterion.name,
            left_out,
        )
    change = {
        "read": {
            key: hashes[key]
            for key, one in read.episodes.items()
            if one.status == "distilled"
            and key in hashes
            and (key not in stored or stored[key].status == "pending")
        },
        "guidelines": guidelines,
    }
    if repeated := by_episode(read.repeated - feedback_in_log(view)):
        change["repeated"] = repeated
    if new := read.answer_ids - view.answer_ids():
        cases = {row.example_id for row in view.rows()} | {
            one.example_id for one in read.episodes.values()
        }
        change |= {"answer_ids": sorted(new), "answers": _answers_on(read.answers, cases)}
    if words or any(change.values()):
        await access.write(io, "import", change, author=author, words=words)
    return list(view.episodes(read.episodes).values())


def _read_lines(access: MemoryAccess, lines: Iterable[str]) -> "_ImportReader":
    """Check all lines, before any is stored."""
    read = _ImportReader(access)
    for number, line in enumerate(lines, start=1):
        try:
            if not isinstance(line, str):
                raise ValueError(f"it is of type {type(line).__name__}, not text.")  # noqa: TRY301
            if line.strip():
                read.line(line)
        except ValidationError as error:
            raise InvalidInputError(f"line {number}: {explain(error)}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidInputError(f"line {number}: {_parse_problem(error)}") from error
    if not read.has_head:
        raise InvalidInputError("source: it has no lines: give what `export_jsonl()` wrote.")
    return read


async def _store_vectors(io: IO, access: MemoryAccess, read: "_ImportReader") -> None:
    for embedder, items in read.vectors.items():
        namespace = access.layout.vectors(embedder)
        [first] = await io.batch(access.store, [SearchOp(namespace, limit=1)])
        there = {len(decode_vector(one.value["vector"])) for one in first}
        dimensions = {len(decode_vector(item["vector"])) for item in items.values()} | there
        if len(dimensions) > 1:
            raise InvalidInputError(
                f"vector: vectors of the embeddings {embedder} have different dimensions "
                f"({', '.join(map(str, sorted(dimensions)))}): they are of different embedders."
            )
        await access.put(io, namespace, dict(items))


class _Answers(FrozenModel):
    """What models answered to checks, and the facts that brought it."""

    ids: list[str] = Field(min_length=1)
    answers: dict[str, dict[str, Annotated[float, Field(ge=0, le=1)]]]


class _Repeated(FrozenModel):
    """Hashes of feedback that was superseded or forgotten, by episode id."""

    hashes: dict[str, list[str]]


def _answers_on(
    answers: Mapping[str, Mapping[str, float]], cases: Container[str]
) -> dict[str, dict[str, float]]:
    """Return the answers on some cases, in a stable order."""
    return {
        asked: {key: answer for key, answer in sorted(by_case.items()) if key in cases}
        for asked, by_case in sorted(answers.items())
    }


class _ImportReader:
    """What the lines hold, checked."""

    def __init__(self, access: MemoryAccess) -> None:
        self._criterion = access.criterion
        self.has_head = False
        self.episodes: dict[str, Episode] = {}
        self.guidelines: dict[str, Guideline] = {}
        self.vectors: dict[str, dict[str, Item]] = {}
        self.repeated: set[tuple[str, str]] = set()
        self.answer_ids: set[str] = set()
        self.answers: dict[str, dict[str, float]] = {}

    def line(self, text: str) -> None:
        """Read a line; raises ValueError or a kin of it where it can't be used."""
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("it is no JSON object.")
        check_json(fields, "the line", depth=-_DEPTH)
        kind = fields.pop("type", None)
        if not self.has_head:
            self._head(kind, fields)
            return
        match kind:
            case "guideline":
                # An earlier version's exports have what was replaced, too, and what lost its words.
                replaced = [fields.pop(name, None) for name in ("superseded_by", "reason")]
                told = fields.get("status"), bool(fields.get("text"))
                is_gone = told[0] == "superseded" or told == ("pending", False)
                if not any(replaced) and not is_gone:
                    self._guideline(Guideline.model_validate(fields))
            case "episode":
                self._episode(Episode.model_validate(fields))
            case "repeated":
                hashes = _Repeated.model_validate(fields).hashes
                self.repeated = {(key, word) for key, words in hashes.items() for word in words}
            case "answers":
                read = _Answers.model_validate(fields)
                self.answer_ids, self.answers = {*read.ids}, read.answers
            case "vector":
                self._vector(fields)
            case _:
                raise ValueError(f"its type {kind!r} is not known.")

    def _head(self, kind: Any, fields: dict[str, Any]) -> None:
        if kind != "memory" or fields.get("format") != FORMAT:
            raise ValueError(
                f'an export begins with a line of type "memory" and format {FORMAT}: give what '
                "`export_jsonl()` wrote."
            )
        own, theirs = self._criterion, fields.get("criterion")
        name = theirs.get("name") if isinstance(theirs, dict) else None
        if name != own.name:
            raise ValueError(
                f"it is the memory of {name!r}, not of {own.name!r}: import it into that one."
            )
        self.has_head = True

    def _guideline(self, guideline: Guideline) -> None:
        _text(guideline.model_dump(), "id")
        check_guideline_text(guideline.text)
        if len(guideline.question or "") > MAX_QUESTION_CHARS:
            raise ValueError(f"question: it has more than {MAX_QUESTION_CHARS} characters.")
        self.guidelines[guideline.id] = guideline

    def _episode(self, episode: Episode) -> None:
        right = episode_id(episode.example.id, episode.author, episode.feedback_id)
        if (episode.id, episode.example_id) != (right, episode.example.id):
            raise ValueError(
                "id: the episode's id does not fit its example and author: an export can't be "
                "edited there; use `remember` instead."
            )
        if episode.value is None and episode.rationale is None:
            raise ValueError("the episode has neither a value nor a rationale: leave it out.")
        if episode.value is not None:
            value = self._criterion.scale.validate_value(episode.value)
            episode = episode.model_copy(update={"value": value})
        self.episodes[episode.id] = episode

    def _vector(self, fields: dict[str, Any]) -> None:
        key, embedder, vector = (_text(fields, name) for name in ("key", "embedder", "vector"))
        base64.b64decode(vector, validate=True)
        try:
            normalised([decode_vector(vector)], 1, embedder)
        except EmbeddingError as error:
            raise ValueError(f"vector: {error}") from error
        item = {"key": key, "embedder": embedder, "vector": vector}
        self.vectors.setdefault(embedder, {})[key] = item


def _text(fields: dict[str, Any], name: str) -> str:
    text = fields[name]
    if not isinstance(text, str) or not text:
        raise ValueError(f"{name}: give text, not empty.")
    return text


def _parse_problem(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON: {error}"
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing."
    if isinstance(error, RecursionError):
        return "it is nested too deep."
    return str(error)


async def _all_vectors(io: IO, access: MemoryAccess, episodes: list[Episode]) -> list[Item]:
    """Read the vectors of the episodes' texts, of all embedders, in a stable order."""
    texts = dict.fromkeys(retrieval_text(one.example)[0] for one in episodes)
    found: list[Item] = []
    for embedder, namespace in (await embedder_namespaces(io, access)).items():
        keys = [vector_key(embedder, text) for text in texts]
        there = await access.get(io, namespace, keys, lambda item: item)
        found += there.values()
    return found
