"""Ways of judging in an evaluation: which share a memory, and who guards what they learn."""

from typing import Any

import pytest

from memalign_graph import Criterion, Judge, Pairwise
from memalign_graph.evaluation import variants
from memalign_graph.evaluation.variants import ALIGNED, Variant
from tests.loopback import LoopbackServer

CRITERION = Criterion(name="better", instructions="Which is better?", scale=Pairwise())
BY_VERDICT = Variant(name=ALIGNED, judge=Judge(criterion=CRITERION))
BY_EVIDENCE = BY_VERDICT.but(ALIGNED, decide="evidence")
GUARDED = Variant(name=ALIGNED, judge=Judge(criterion=CRITERION), guard="replay")

OPTIONS: dict[str, dict[str, Any]] = {
    "k": {"k": 1},
    "use_guidelines": {"use_guidelines": False},
    "use_episodes": {"use_episodes": False},
    "max_guideline_tokens": {"max_guideline_tokens": 5},
    "swap": {"swap": True},
    "cite_guidelines": {"cite_guidelines": True},
    "confidence": {"confidence": True},
    "samples": {"confidence": True, "samples": 3},
    "model": {"model": "openai:gpt-4.1", "distill_model": "openai:gpt-4.1-mini"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_what_was_judged_otherwise_is_another_memory(options: dict[str, Any]) -> None:
    for judged in (BY_EVIDENCE, GUARDED):
        assert judged.but("other", **options).memory_key != judged.memory_key
    # What is distilled does not depend on how it is judged.
    assert BY_VERDICT.but("other", **options).memory_key == BY_VERDICT.memory_key


def test_with_judged_cases_is_another_memory_than_without() -> None:
    assert BY_EVIDENCE.memory_key != BY_VERDICT.memory_key != GUARDED.memory_key
    assert BY_EVIDENCE.but("other").memory_key == BY_EVIDENCE.memory_key
    assert GUARDED.but("other").memory_key == GUARDED.memory_key


@pytest.mark.parametrize("learning", [{"learn_from": "words"}, {"batch_size": 3}], ids=str)
def test_what_was_learned_otherwise_is_another_memory(learning: dict[str, Any]) -> None:
    for variant in (BY_VERDICT, BY_EVIDENCE, GUARDED):
        assert variant.model_copy(update=learning).memory_key != variant.memory_key


@pytest.mark.parametrize("options", [*OPTIONS.values(), {"decide": "evidence"}], ids=str)
def test_the_guard_judges_as_the_judge_does(
    options: dict[str, Any], server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Any] = []
    for name in ("create_judge_graph", "create_alignment_graph"):
        monkeypatch.setattr(variants, name, lambda *_, **judge: built.append(judge))
    model, embeddings = server.chat_model(), server.embedder()
    variant = GUARDED.but("other", **options)
    variant.judge_graph(model, embeddings)
    variant.alignment_graph(model, model, embeddings)
    deployed, guard = built
    del deployed["distill_model"]
    assert {name: guard[name] for name in deployed} == deployed
    assert guard["guard"] == "replay"


def test_the_base_judge_has_no_evidence() -> None:
    base = BY_EVIDENCE.but(ALIGNED, confidence=True, samples=2).without_memory()
    assert (base.judge.decide, base.has_memory) == ("verdict", False)
    assert (base.judge.confidence, base.judge.samples) == (True, 2)


def test_evidence_alone_is_memory() -> None:
    assert BY_EVIDENCE.but("other", use_guidelines=False, use_episodes=False).has_memory
