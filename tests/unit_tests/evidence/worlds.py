"""Made-up memories: clustered cases, experts and a judge of a known quality."""

import random
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memalign_graph import Boolean, Categorical, Numeric
from memalign_graph.evidence.cases import load_cases
from memalign_graph.evidence.confidence import Decision, RawVerdict
from memalign_graph.evidence.evidence_model import EvidenceModel
from memalign_graph.memory.facts import Fact, new_id, timestamp_us
from memalign_graph.memory.index import text_of, vector_key
from memalign_graph.memory.memory_state import EpisodeRow
from memalign_graph.memory.view import MemoryView
from memalign_graph.scales import Scale, Value

START = datetime(2026, 1, 1, tzinfo=UTC)
YES_NO = Boolean()
SCALES: dict[str, Scale] = {
    "choices": Categorical(choices=("warm", "cold", "odd")),
    "ordered": Categorical(choices=("poor", "fair", "good"), ordered=True),
    "share": Numeric(minimum=0, maximum=1),
    "stars": Numeric(minimum=1, maximum=5, integer=True),
}
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Item:
    """A case: where it lies, what experts say, and what the judge says."""

    vector: Vectors
    truth: Value
    verdict: Value | None
    probabilities: Mapping[str, float] | None = None
    judge_key: str | None = None


def normalised(vectors: Any) -> Vectors:
    rows = np.asarray(vectors, dtype=np.float32)
    unit: Vectors = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return unit


def values_of(scale: Scale) -> list[Value]:
    """Values on a scale; of a continuous one every tenth."""
    if isinstance(scale, Numeric):
        low, high = scale.minimum, scale.maximum
        count = int(high - low) if scale.integer else 10
        return [scale.validate_value(low + (high - low) * n / count) for n in range(count + 1)]
    return [True, False] if isinstance(scale, Boolean) else list(scale.choices)


Judge = Callable[[Scale, Value, random.Random], Value]


def right_in(share: float) -> Judge:
    """A judge that is right so often, and else says anything."""

    def judge(scale: Scale, truth: Value, rng: random.Random) -> Value:
        if rng.random() < share:
            return truth
        others = [each for each in values_of(scale) if each != truth]
        return rng.choice(others)

    return judge


def coin(scale: Scale, _: Value, rng: random.Random) -> Value:
    """A judge that says anything."""
    return rng.choice(values_of(scale))


def world(
    scale: Scale,
    count: int,
    rng: random.Random,
    judge: Judge,
    *,
    clusters: int = 6,
    purity: float = 0.9,
) -> list[Item]:
    """Cases in clusters, each of mostly one value."""
    numbers = np.random.default_rng(rng.randrange(2**32))
    centres = numbers.normal(size=(clusters, 16))
    values = values_of(scale)
    step = 2 if len(values) > clusters else 1  # so that all thirds of the range are there
    own = [values[step * at % len(values)] for at in range(clusters)]
    rng.shuffle(own)
    label = right_in(purity)
    items = []
    for _ in range(count):
        cluster = rng.randrange(clusters)
        vector = normalised(centres[cluster] + 0.5 * numbers.normal(size=16))
        truth = label(scale, own[cluster], rng)
        items.append(Item(vector, truth, judge(scale, truth, rng)))
    return items


def word(at: int, item: Item, case: int | None = None) -> dict[str, Any]:
    """What an expert says on a case, as it lies in a store; its own case unless told."""
    case = at if case is None else case
    judged: dict[str, Any] = {"value": item.verdict, "probabilities": item.probabilities}
    judged["judge_key"] = item.judge_key
    episode = {
        "id": f"e{at:04d}",
        "example": {"inputs": f"Case {case}", "outputs": "a"},
        "example_id": f"x{case:04d}",
        "value": item.truth,
        "given_at": (START + timedelta(minutes=at)).isoformat(),
        "created_at": (START + timedelta(minutes=at)).isoformat(),
        "status": "distilled",
        "judgment": None if item.verdict is None else judged,
    }
    return {"key": f"e{at:04d}", "content": f"e{at:04d}", "word": f"w{at:04d}", "episode": episode}


def key_of(case: int) -> str:
    """The key of a case's vector."""
    return vector_key("made up", text_of(f"Case {case}", "a")[0])


def view_of(items: Sequence[Item], records: Sequence[dict[str, Any]] = ()) -> MemoryView:
    """A memory of cases, with these records of feedback or with one of its own each."""
    view = MemoryView("made up")
    put(view, records or [word(at, item) for at, item in enumerate(items)], items)
    return view


def put(view: MemoryView, words: Sequence[dict[str, Any]], items: Sequence[Item]) -> None:
    """Bring words into a memory, with the vectors of their cases."""
    cases = [int(each["episode"]["example_id"][1:]) for each in words]
    vectors = {key_of(case): item.vector for case, item in zip(cases, items, strict=True)}
    by_key = {each["key"]: EpisodeRow.of(each, "made up") for each in words}
    view.add([fact(view, said={key: key for key in by_key})], by_key, vectors)


def drop(view: MemoryView, ids: Sequence[str]) -> None:
    view.add([fact(view, forgotten=list(ids))], {})


def fact(view: MemoryView, **change: Any) -> Fact:
    at_us = timestamp_us(view.latest_fact_id) + 1
    return Fact(id=new_id(at_us), at_us=at_us, reason="made up", **change)


def model_of(
    memory: MemoryView | Sequence[Item],
    scale: Scale = YES_NO,
    excluded_ids: Container[str] = (),
    judge_key: str | None = None,
) -> EvidenceModel:
    """The evidence model of a memory, or of cases."""
    view = memory if isinstance(memory, MemoryView) else view_of(memory)
    cases = load_cases(view, scale, judge_key)
    return EvidenceModel(scale, [case for case in cases if case.example_id not in excluded_ids])


def decided(model: EvidenceModel, item: Item, mode: Any = "evidence") -> Decision:
    """The decision on a new case."""
    verdict = item.truth if item.verdict is None else item.verdict
    source: Any = None if item.probabilities is None else "logprobs"
    raw = RawVerdict(verdict, item.probabilities, source)
    return model.decide(raw, item.vector, mode)
