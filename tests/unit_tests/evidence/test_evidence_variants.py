"""Ways of judging in an evaluation: which share a memory, and what the base judge leaves out."""

from dataclasses import replace
from typing import Any

import pytest

from memalign_graph.evaluation.variants import ALIGNED, Variant

BY_VERDICT = Variant(name=ALIGNED, model="openai:gpt-4.1-mini")
BY_EVIDENCE = replace(BY_VERDICT, decide="evidence")

OPTIONS: dict[str, dict[str, Any]] = {
    "k": {"k": 1},
    "use_guidelines": {"use_guidelines": False},
    "use_episodes": {"use_episodes": False},
    "max_guideline_tokens": {"max_guideline_tokens": 5},
    "swap": {"swap": True},
    "confidence": {"confidence": True},
    "samples": {"samples": 3},
    "model": {"model": "openai:gpt-4.1", "distill_model": "openai:gpt-4.1-mini"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_what_was_judged_otherwise_is_another_memory(options: dict[str, Any]) -> None:
    assert replace(BY_EVIDENCE, **options).memory_key != BY_EVIDENCE.memory_key
    # What is distilled does not depend on how it is judged.
    assert replace(BY_VERDICT, **options).memory_key == BY_VERDICT.memory_key


def test_with_judged_cases_is_another_memory_than_without() -> None:
    assert BY_EVIDENCE.memory_key != BY_VERDICT.memory_key
    assert replace(BY_EVIDENCE, name="other").memory_key == BY_EVIDENCE.memory_key


def test_the_base_judge_has_no_evidence() -> None:
    base = replace(BY_EVIDENCE, confidence=True, samples=2).without_memory()
    assert (base.decide, base.has_memory) == ("verdict", False)
    assert (base.confidence, base.samples) == (True, 2)


def test_evidence_alone_is_memory() -> None:
    assert replace(BY_EVIDENCE, use_guidelines=False, use_episodes=False).has_memory
