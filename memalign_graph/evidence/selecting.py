"""What to ask first: of a backlog of cases those from whose labels a memory learns most."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from memalign_graph.agreement import on_scale
from memalign_graph.effects import Call, Operation
from memalign_graph.errors import InvalidInputError, explain
from memalign_graph.evidence import design
from memalign_graph.evidence.candidate import ReviewCandidate
from memalign_graph.evidence.cases import Floats, table_of
from memalign_graph.evidence.design import Pick, Singles
from memalign_graph.evidence.places import places_of
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import embed, index_missing, stored_vectors
from memalign_graph.memory.index.retrieval_text import MAX_BYTES, retrieval_text
from memalign_graph.memory.index.vectors import Vector, vector_key
from memalign_graph.memory.view import MemoryView
from memalign_graph.reading import ExampleLike, read_example
from memalign_graph.scales import Numeric, Scale, Value
from memalign_graph.types import Criterion, Example, Judgment

logger = logging.getLogger(__name__)

JudgmentLike = Judgment | Mapping[str, Any]
"""A judgment, or its fields."""

NEIGHBOURS = 5
"""How many of the most similar cases tell how unsure a case's value is."""

_DIGITS = 6


@dataclass(frozen=True)
class OpenCase:
    """A case of the backlog that no expert has valued."""

    index: int
    """Its place in the backlog."""

    example: Example
    """The case."""

    text: str
    """What of it is embedded."""

    key: str
    """The vector key of that."""


@dataclass(frozen=True)
class Known:
    """The cases in memory that experts valued."""

    vectors: Singles
    """Their vectors, a row a case."""

    values: list[list[Value]]
    """What the experts say of each."""


def select_for_review(
    access: MemoryAccess,
    examples: Sequence[ExampleLike],
    n: int,
    judgments: Sequence[JudgmentLike] | None,
) -> Operation[list[ReviewCandidate]]:
    """Pick the cases of a backlog that experts should label first.

    Args:
        access: The memory.
        examples: The backlog.
        n: How many to pick.
        judgments: The judge's judgments on cases of the backlog, if there are any.

    Returns:
        Up to n cases, the one from which the memory learns most first.

    Raises:
        InvalidInputError: If something given can't be used; nothing is embedded then.
        EmbeddingError: If an embedding call fails.
    """
    backlog = read_backlog(examples)
    check_count(n)
    unsure = read_uncertainties(judgments, access.criterion, backlog)
    if not n or not backlog:
        return []
    view = yield from access.refresh()
    cases = _open_cases(access, backlog, view)
    if not cases:
        return []
    yield from index_missing(access, view)
    scale = access.criterion.scale
    known = _known(view, scale)
    vectors = yield from _vectors(access, view, cases)

    def choose() -> list[ReviewCandidate]:
        doubts, novelties = _looked_at(vectors, known, scale)
        for row, case in enumerate(cases):
            doubts[row] = unsure.get(case.example.id, doubts[row])
        labelled = vectors[:0] if known is None else known.vectors
        picked = design.pick(vectors, doubts, labelled, n)
        return [_candidate(one, cases[one.row], doubts, novelties) for one in picked]

    # A large backlog takes seconds, for which an event loop should not stand still.
    found: list[ReviewCandidate] = yield Call(choose, lambda: asyncio.to_thread(choose))
    return found


def read_backlog(examples: Any) -> list[Example]:
    """Read a backlog.

    Args:
        examples: Examples, or their fields.

    Returns:
        The examples.

    Raises:
        InvalidInputError: If it is no list, or one of them can't be used, by its place.
    """
    return _read_list(examples, "examples", read_example)


def check_count(n: Any) -> int:
    """Check how many cases to pick.

    Args:
        n: What was given.

    Returns:
        The number.

    Raises:
        InvalidInputError: If it is no whole number from 0 on.
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 0:
        raise InvalidInputError(f"n: {n!r} is not a whole number from 0 on.")
    return n


def read_uncertainties(
    judgments: Any, criterion: Criterion, backlog: Sequence[Example]
) -> dict[str, float]:
    """Read from judgments how unsure the judge is.

    Args:
        judgments: Judgments with or without confidence, in any order, or their fields; None for
            none.
        criterion: The criterion.
        backlog: What they are on.

    Returns:
        By example id, from 0, where the judge is sure, to 1, where its confidence is no higher than
        that of a guess; of several judgments on one example the least sure counts. Examples without
        a measured confidence are not in it.

    Raises:
        InvalidInputError: If it is no list, one can't be used, is of another criterion, or none is
            on an example of the backlog.
    """
    if judgments is None:
        return {}
    read = _read_list(judgments, "judgments", _read_judgment)
    for at, judgment in enumerate(read):
        if judgment.criterion != criterion.name:
            raise InvalidInputError(
                f"judgments[{at}]: is of the criterion {judgment.criterion!r}, not of "
                f"{criterion.name!r}: give judgments made by this criterion."
            )
    ids = {example.id for example in backlog}
    known = [judgment for judgment in read if judgment.example_id in ids]
    if read and ids and not known:
        raise InvalidInputError(
            f"judgments: none of the {len(read)} is on an example of the backlog: give those made "
            "on these examples, `reference_outputs` included."
        )
    if len(known) < len(read):
        logger.warning(
            "Selecting for %r: %d of %d judgments are on no example of the backlog and are passed "
            "over.",
            criterion.name,
            len(read) - len(known),
            len(read),
        )
    unsure: dict[str, float] = {}
    for judgment in known:
        if judgment.confidence is not None:
            doubt = _doubt(judgment.confidence, criterion.scale)
            unsure[judgment.example_id] = max(doubt, unsure.get(judgment.example_id, 0.0))
    return unsure


def _read_list(given: Any, name: str, read: Callable[[Any], Any]) -> list[Any]:
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InvalidInputError(
            f"{name}: give a list, also of one, not a value of type {type(given).__name__}."
        )
    found = []
    for at, one in enumerate(given):
        try:
            found.append(read(one))
        except InvalidInputError as error:
            raise InvalidInputError(f"{name}[{at}]: {error}") from error
    return found


def _read_judgment(judgment: Any) -> Judgment:
    if not isinstance(judgment, Judgment | Mapping):
        raise InvalidInputError(
            "give a Judgment, or the object that a graph returns as `judgment`, not a value of "
            f"type {type(judgment).__name__}."
        )
    try:
        return Judgment.model_validate(
            judgment if isinstance(judgment, Judgment) else dict(judgment)
        )
    except ValidationError as error:
        raise InvalidInputError(explain(error)) from error


def _doubt(confidence: float, scale: Scale) -> float:
    """Turn a confidence into uncertainty: 1 for that of a guess, and for less."""
    guess = 0.0 if isinstance(scale, Numeric) else 1 / len(places_of(scale).choices)
    return min((1 - confidence) / (1 - guess), 1.0)


def _open_cases(
    access: MemoryAccess, backlog: Sequence[Example], view: MemoryView
) -> list[OpenCase]:
    """Return the cases that no expert has valued, each once."""
    scale, embedder = access.criterion.scale, access.embedder.id
    seen = {row.example_id for row in view.rows() if on_scale(row.value, scale) is not None}
    cases, cut = [], 0
    for index, example in enumerate(backlog):
        if example.id not in seen:
            seen.add(example.id)
            text, truncated = retrieval_text(example)
            cases.append(OpenCase(index, example, text, vector_key(embedder, text)))
            cut += truncated
    if cut:
        logger.warning(
            "Selecting for %r: %d of %d cases are longer than the %d bytes that are embedded, and "
            "are compared by their beginnings.",
            access.criterion.name,
            cut,
            len(cases),
            MAX_BYTES,
        )
    return cases


def _known(view: MemoryView, scale: Scale) -> Known | None:
    """Return the cases that experts valued; None if there are none."""
    import numpy as np

    table = table_of(view, scale)
    with table.lock:
        table.refresh()
        keys = sorted(table.voters)
    vectors: list[Vector] = []
    values: list[list[Value]] = []
    for key in keys:
        vector = view.index.get(key)
        given = [on_scale(row.value, scale) for row in view.rows_at(key)]
        said = [one for one in given if one is not None]
        if vector is not None and said:  # else taken back meanwhile
            vectors.append(vector)
            values.append(said)
    return Known(np.stack(vectors), values) if vectors else None


def _vectors(
    access: MemoryAccess, view: MemoryView, cases: Sequence[OpenCase]
) -> Operation[Singles]:
    """Return the cases' vectors, a row a case; what memory lacks is embedded, and not stored."""
    import numpy as np

    texts = {case.key: case.text for case in cases}
    found = {key: known for key in texts if (known := view.index.get(key)) is not None}
    found |= yield from stored_vectors(access, texts.keys() - found.keys())
    found |= yield from embed(access, {key: texts[key] for key in texts if key not in found})
    view.index.check(found.values(), like=found.values())
    return np.stack([found[case.key] for case in cases])


def _looked_at(vectors: Singles, known: Known | None, scale: Scale) -> tuple[Floats, Floats]:
    """Return how unsure the cases' values are by what memory knows, and how new they are to it."""
    import numpy as np

    if known is None:
        return np.ones(len(vectors)), np.ones(len(vectors))
    similarities, rows = design.nearest_known(vectors, known.vectors, NEIGHBOURS)
    doubts = _differing(similarities, known.values, rows, scale)
    return doubts, np.clip(1 - similarities[:, 0], 0, 1)


def _differing(
    similarities: Floats, values: Sequence[Sequence[Value]], rows: Any, scale: Scale
) -> Floats:
    """Measure how far the most similar cases differ in what their experts say."""
    import numpy as np

    if isinstance(scale, Numeric):
        width = scale.maximum - scale.minimum
        numbers = [(np.array(said, dtype=float) - scale.minimum) / width for said in values]
        means = np.array([one.mean() for one in numbers])
        squares = np.array([(one**2).mean() for one in numbers])
        return design.number_doubts(similarities, means[rows], squares[rows])
    counted = [Counter(said) for said in values]
    choices = places_of(scale).choices
    shares = np.array([[one[choice] / one.total() for choice in choices] for one in counted])
    return design.share_doubts(similarities, shares[rows])


def _candidate(found: Pick, case: OpenCase, doubts: Floats, novelties: Floats) -> ReviewCandidate:
    return ReviewCandidate(
        example=case.example,
        index=case.index,
        gain=round(found.gain, _DIGITS),
        uncertainty=round(float(doubts[found.row]), _DIGITS),
        novelty=round(float(novelties[found.row]), _DIGITS),
        spread=round(found.spread, _DIGITS),
    )
