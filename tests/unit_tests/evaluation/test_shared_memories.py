"""Which judges share what they learn: those that would learn the same."""

from typing import Any

import pytest

from memalign_graph import Criterion, Judge, Pairwise
from memalign_graph.evaluation.evaluate import _memory_key
from memalign_graph.settings import Alignment

CRITERION = Criterion(name="better", instructions="Which is better?", scale=Pairwise())
JUDGE = Judge(criterion=CRITERION)
SAID: list[dict[str, Any]] = [
    {"k": 1},
    {"use_guidelines": False},
    {"use_episodes": False},
    {"swap": True},
    {"confidence": True, "samples": 3},
]


def key(judge: Judge = JUDGE, **learning: Any) -> Any:
    return _memory_key(Alignment(judge=judge, **learning))


@pytest.mark.parametrize("options", SAID, ids=str)
def test_what_was_judged_otherwise_is_another_memory(options: dict[str, Any]) -> None:
    """Where verdicts are weighed or guard what is learned; what is distilled does not depend."""
    weighed = JUDGE.but(decide="evidence")
    assert key(JUDGE.but(**options)) == key()
    assert key(weighed.but(**options)) != key(weighed)
    assert key(JUDGE.but(**options), guard="replay") != key(guard="replay")


def test_what_was_learned_otherwise_is_another_memory() -> None:
    ways = [key(), key(learn_from="words"), key(batch_size=3), key(guard="replay")]
    ways += [key(JUDGE.but(distill_model="openai:other")), key(JUDGE.but(embeddings="local"))]
    ways += [key(JUDGE.but(decide="evidence")), key(judge_cases=True)]
    assert len(set(ways)) == len(ways)
    assert key() == key(Judge(criterion=CRITERION))
