"""Whether an expert is asked, through a whole memory: cases on a circle, judged and valued."""

import math
import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import Criterion, Example, Feedback, JudgeMemory
from memalign_graph.evidence.deciding import current_evidence_model
from memalign_graph.identity import draw
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.index import retrieval_text
from memalign_graph.memory.recall import embed
from memalign_graph.scales import Boolean

YES_NO = Criterion(name="tone", instructions="Is the reply appropriate?", scale=Boolean())

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


def valued(degrees: float) -> Feedback:
    return Feedback(example=example_at(degrees), value=True)


def filled(*feedback: Feedback, embeddings: Any = on_circle) -> JudgeMemory:
    memory = JudgeMemory(InMemoryStore(), YES_NO, embeddings=embeddings)
    memory.remember(list(feedback))
    return memory


def is_novel(memory: JudgeMemory, degrees: float) -> bool:
    text, _ = retrieval_text(example_at(degrees))
    vector = run_sync(embed(SYNC, memory.access, {"case": text}))["case"]
    model = run_sync(current_evidence_model(SYNC, memory.access))
    return model.is_novel(model.nearest(vector))


@pytest.mark.parametrize("embeddings", [on_circle, on_narrow_cone])
def test_case_unlike_all_others_is_flagged_whatever_the_embedder(embeddings: Any) -> None:
    memory = filled(*map(valued, [*range(40), 150]), embeddings=embeddings)
    places = (20.5, 39.9, 150, 100, -60)
    assert [is_novel(memory, at) for at in places] == [False, False, False, True, True]
    model = run_sync(current_evidence_model(SYNC, memory.access))
    assert model.is_novel(model.nearest(None))
    rng, flagged = np.random.default_rng(3), []
    for _ in range(4):
        memory = filled(*map(valued, rng.uniform(0, 180, 60)), embeddings=embeddings)
        flagged += [is_novel(memory, rng.uniform(0, 180)) for _ in range(25)]
    assert np.mean(flagged) <= 0.1


def test_a_memory_that_has_each_case_in_two_wordings_asks_no_more_often() -> None:
    twice = [valued(at + off) for at in range(0, 180, 3) for off in (0, 0.05)]
    memory = filled(*twice)
    assert not any(is_novel(memory, at + 1.4) for at in range(0, 170, 17))


def test_few_cases_flag_nothing_but_an_empty_memory_does() -> None:
    assert is_novel(filled(), 0)
    for count in (1, 2, 5, 18):
        memory = filled(*(valued(20 * at) for at in range(count)))
        assert not any(is_novel(memory, at) for at in (5, 90, 200))
    assert not is_novel(filled(*map(valued, range(18))), 120)
    assert is_novel(filled(*map(valued, range(19))), 120)
    equal = filled(*(valued(30 + at / 1000) for at in range(40)))
    assert (is_novel(equal, 30.0205), is_novel(equal, 33)) == (False, True)


def test_draw_is_the_same_for_the_same_judgment_and_fair_over_many() -> None:
    ids = [UUID(int=number, version=4).hex for number in range(20_000)]
    drawn = {key for key in ids if draw(key) < 0.05}
    assert 0.045 < len(drawn) / len(ids) < 0.055
    assert drawn < {key for key in ids if draw(key) < 0.2}
    assert all(0 <= draw(key) < 1 for key in ids)
