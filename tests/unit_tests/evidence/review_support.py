"""What tests of `review="uncertain"` share: cases on a circle, judged and valued."""

import math
import re
from collections.abc import Sequence
from typing import Any

from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from memalign_graph import Boolean, Criterion, Example, Feedback, JudgeMemory, Judgment
from memalign_graph.evidence.asking import flags_of
from memalign_graph.evidence.process import current_process
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory.embedding import embed
from memalign_graph.memory.index.retrieval_text import retrieval_text

YES_NO = Criterion(name="tone", instructions="Is the reply appropriate?", scale=Boolean())

_ANGLE = re.compile(r"at (-?[\d.]+) degrees")


def on_circle(texts: Sequence[str]) -> list[list[float]]:
    """Embeddings whose similarity is the cosine of the angle between two texts."""
    angles = [math.radians(float(_ANGLE.search(text)[1])) for text in texts]  # type: ignore[index]
    return [[math.cos(one), math.sin(one)] for one in angles]


def on_narrow_cone(texts: Sequence[str]) -> list[list[float]]:
    """The same of an embedder for which everything is alike: no similarity is below 0.98."""
    return [[*one, 10.0] for one in on_circle(texts)]


def case_at(degrees: float) -> dict[str, str]:
    """A case."""
    return {"inputs": f"Something at {degrees:.6f} degrees", "outputs": "An answer."}


def judged(
    degrees: float,
    value: Any,
    *,
    verdict: Any = None,
    sure: float | None = None,
    author: str | None = None,
    criterion: Criterion = YES_NO,
    **fields: Any,
) -> Feedback:
    """An expert's value on a case, and what the judge had said of it; with how sure it was of yes.

    Args:
        degrees: Where the case lies.
        value: The expert's value.
        verdict: The judge's; the expert's own unless given.
        sure: How likely it held true.
        author: The expert.
        criterion: What was judged.
        fields: Further fields of the judgment.
    """
    example = Example.model_validate(case_at(degrees))
    said = value if verdict is None else verdict
    judgment = Judgment(
        criterion=criterion.name,
        example_id=example.id,
        value=said,
        rationale="So the judge said.",
        memory_version="0" * 32,
        probabilities=None if sure is None else {"true": sure, "false": 1 - sure},
        **fields,
    )
    return Feedback(example=example, value=value, judgment=judgment, author=author)


def filled(
    *feedback: Feedback,
    criterion: Criterion = YES_NO,
    embeddings: Any = on_circle,
    store: BaseStore | None = None,
) -> JudgeMemory:
    """A memory that holds some feedback."""
    memory = JudgeMemory(store or InMemoryStore(), criterion, embeddings=embeddings)
    memory.remember(list(feedback))
    return memory


def flags_at(memory: JudgeMemory, degrees: float) -> list[str]:
    """The flags of a new case."""
    text, _ = retrieval_text(Example.model_validate(case_at(degrees)))
    vector = run(embed(BLOCKING, memory.access, {"case": text}))["case"]
    process = run(current_process(BLOCKING, memory.access))
    return list(flags_of(process, memory.access.view, vector))
