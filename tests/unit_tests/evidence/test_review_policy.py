"""Whether an expert is asked, through a whole memory: cases on a circle, judged and valued."""

import math
import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from memalign_graph import Categorical, Criterion, Example, Feedback, JudgeMemory, Numeric
from memalign_graph.evidence.deciding import current_evidence_model, is_sampled, review_flags
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.index import retrieval_text
from memalign_graph.memory.recall import embed
from memalign_graph.scales import Boolean

YES_NO = Criterion(name="tone", instructions="Is the reply appropriate?", scale=Boolean())
UNLIKE = ["no_similar_episode"]
DIVIDED = ["episodes_disagree"]

_ANGLE = re.compile(r"at (-?[\d.]+) degrees")


def on_circle(texts: Sequence[str]) -> list[list[float]]:
    """Embeddings whose similarity is the cosine of the angle between two texts."""
    angles = [math.radians(float(_ANGLE.search(text)[1])) for text in texts]  # type: ignore[index]
    return [[math.cos(angle), math.sin(angle)] for angle in angles]


def on_narrow_cone(texts: Sequence[str]) -> list[list[float]]:
    """The same of an embedder for which everything is alike: no similarity is below 0.98."""
    return [[*vector, 10.0] for vector in on_circle(texts)]


def example_at(degrees: float) -> Example:
    return Example(inputs=f"Something at {degrees:.6f} degrees", outputs="An answer.")


def valued(
    degrees: float,
    value: Any = True,  # noqa: FBT002 - any scale's
    author: str | None = None,
) -> Feedback:
    return Feedback(example=example_at(degrees), value=value, author=author)


def filled(
    *feedback: Feedback,
    criterion: Criterion = YES_NO,
    embeddings: Any = on_circle,
    store: BaseStore | None = None,
) -> JudgeMemory:
    memory = JudgeMemory(store or InMemoryStore(), criterion, embeddings=embeddings)
    memory.remember(list(feedback))
    return memory


def flags_at(memory: JudgeMemory, degrees: float) -> list[str]:
    text, _ = retrieval_text(example_at(degrees))
    vector = run_sync(embed(SYNC, memory.access, {"case": text}))["case"]
    model = run_sync(current_evidence_model(SYNC, memory.access))
    return list(review_flags(model, model.nearest(vector)))


@pytest.mark.parametrize("embeddings", [on_circle, on_narrow_cone])
def test_case_unlike_all_others_is_flagged_whatever_the_embedder(embeddings: Any) -> None:
    memory = filled(*map(valued, [*range(40), 150]), embeddings=embeddings)
    places = (20.5, 39.9, 150, 100, -60)
    assert [flags_at(memory, at) for at in places] == [[], [], [], UNLIKE, UNLIKE]
    model = run_sync(current_evidence_model(SYNC, memory.access))
    assert review_flags(model, model.nearest(None)) == UNLIKE
    rng, flagged = np.random.default_rng(3), []
    for _ in range(4):
        memory = filled(*map(valued, rng.uniform(0, 180, 60)), embeddings=embeddings)
        flagged += [flags_at(memory, rng.uniform(0, 180)) == UNLIKE for _ in range(25)]
    assert np.mean(flagged) <= 0.1


def test_a_memory_that_has_each_case_in_two_wordings_asks_no_more_often() -> None:
    twice = [valued(at + off) for at in range(0, 180, 3) for off in (0, 0.05)]
    memory = filled(*twice)
    assert [flags_at(memory, at + 1.4) for at in range(0, 170, 17)] == [[]] * 10


def test_few_cases_flag_nothing_but_an_empty_memory_does() -> None:
    assert flags_at(filled(), 0) == UNLIKE
    for count in (1, 2, 5, 18):
        memory = filled(*(valued(20 * at, at % 2 == 0) for at in range(count)))
        assert [flags_at(memory, at) for at in (5, 90, 200)] == [[], [], []]
    assert flags_at(filled(*map(valued, range(18))), 120) == []
    assert flags_at(filled(*map(valued, range(19))), 120) == UNLIKE
    equal = filled(*(valued(30 + at / 1000) for at in range(40)))
    assert (flags_at(equal, 30.0205), flags_at(equal, 33)) == ([], UNLIKE)


@pytest.mark.parametrize(
    ("scale", "low", "high"),
    [
        (Boolean(), True, False),
        (Categorical(choices=("bad", "fair", "good"), ordered=True), "bad", "good"),
        (Numeric(minimum=0, maximum=10), 0.0, 10.0),
    ],
)
def test_case_in_contradictory_company_is_flagged(scale: Any, low: Any, high: Any) -> None:
    criterion = Criterion(name="tone", instructions="How is it?", scale=scale)
    calm = [valued(2 * at, low) for at in range(80)]
    torn = [valued(250 + at, value) for at, value in enumerate([low, high, low, high, high])]
    memory = filled(*calm, *torn, criterion=criterion)
    assert (flags_at(memory, 252.5), flags_at(memory, 60.5)) == (DIVIDED, [])
    # Of another scale no value counts.
    other = Criterion(name="tone", instructions="?", scale=Categorical(choices=("x", "y")))
    assert flags_at(filled(store=memory.access.store, criterion=other), 20) == UNLIKE


def test_experts_who_differ_on_the_very_cases_are_seen() -> None:
    calm = [valued(3 * at) for at in range(60)]
    for other, told in ((False, DIVIDED), (True, [])):
        authors = ("ann", True), ("bob", other)
        said = [valued(250 + at, value, who) for at in range(5) for who, value in authors]
        assert flags_at(filled(*calm, *said), 252.5) == told


def test_memory_that_is_contradictory_everywhere_does_not_ask_everywhere() -> None:
    rng = np.random.default_rng(5)
    memory = filled(*(valued(at, bool(rng.random() < 0.6)) for at in range(0, 180, 2)))
    flagged = [flags_at(memory, at + 1) for at in range(0, 178, 2)]
    assert sum("episodes_disagree" in flags for flags in flagged) / len(flagged) <= 0.12


def test_draw_is_the_same_for_the_same_judgment_and_fair_over_many() -> None:
    ids = [UUID(int=number, version=4).hex for number in range(20_000)]
    drawn = {key for key in ids if is_sampled(key, 0.05)}
    assert 0.045 < len(drawn) / len(ids) < 0.055
    assert drawn < {key for key in ids if is_sampled(key, 0.2)}
    assert not any(is_sampled(key, 0) for key in ids)
    assert all(is_sampled(key, 1) for key in ids)
