"""Guidelines as measured checks: what they are worth, which leave, and what they tell of a case."""

from collections.abc import Sequence
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import Boolean, Categorical, Criterion, JudgeMemory, Numeric, Pairwise
from memalign_graph.identity import asked_id
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.learning import record_check_answers, record_questions
from memalign_graph.scales import Scale
from memalign_graph.types import Worth
from tests.conftest import Bench
from tests.integration_tests.evidence.judging_support import case, number_of, truth, words
from tests.unit_tests.memory.support import comment, hashed, learn, op

LEFT_OUT = (
    "1 guideline(s) were left out, since on the cases in memory they state the opposite of the "
    "experts' values."
)
SHARE = Numeric(minimum=0, maximum=1)


def note(memory: JudgeMemory, answers: dict[str, Sequence[float]], model: str = "m") -> None:
    """What a model answers on the first cases, oldest first, by the guideline's text."""
    asked = {
        asked_id(f"{text}?", model): {
            episode.example_id: answer
            for episode, answer in zip(memory.episodes(), values, strict=False)
        }
        for text, values in answers.items()
    }
    run_sync(record_check_answers(SYNC, memory.access, asked))


def teach(memory: JudgeMemory, *texts: str) -> None:
    """Guidelines that come from the newest case."""
    source = memory.episodes()[-1]
    learn(memory, *(op("add", source, text=text, question=f"{text}?") for text in texts))


def graded(scale: Scale, values: Sequence[Any]) -> JudgeMemory:
    """Values on cases, and one more that guidelines come from."""
    criterion = Criterion(name="graded", instructions="How good is it?", scale=scale)
    memory = JudgeMemory(InMemoryStore(), criterion, embeddings=hashed)
    for number, value in enumerate([*values, values[0]]):
        memory.remember(comment(f"Case {number}", None, value=value))
    return memory


async def test_a_harmful_guideline_leaves_the_prompt_and_comes_back(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.remember(*words(9))
    memory = bench.memory()
    teach(memory, "Help", "Harm")
    memory.add_guideline("Hand")
    run_sync(record_questions(SYNC, memory.access, {"Hand": "Hand?"}))
    right = [float(truth(number)) for number in range(9)]
    wrong = [1 - answer for answer in right]
    note(memory, {"Help": right, "Harm": wrong, "Hand": wrong})
    measured = {rule.text: (rule.status, rule.worth) for rule in memory.guidelines()}
    assert measured == {
        "Help": ("standing", Worth(auc=1, cases=8)),  # without the one that they come from
        "Harm": ("unproven", Worth(auc=0, cases=8)),
        "Hand": ("standing", Worth(auc=0, cases=9)),
    }
    graph = bench.judge_graph(decide="verdict", k=0)
    for gone, left_out in (0, [LEFT_OUT]), (1, []):
        memory.forget([episode.id for episode in memory.episodes()[:gone]])
        caplog.clear()
        await bench.invoke(graph, case(51))
        judgment = (await bench.invoke(graph, case(50)))["judgment"]
        # A process may judge millions of cases with this memory.
        assert len(caplog.messages) == len(left_out)
        shown = [rule.text for rule in memory.guidelines() if rule.id in judgment["guideline_ids"]]
        assert shown == ["Help", *(["Harm"] if gone else []), "Hand"]
        assert judgment["warnings"] == left_out
        assert number_of(bench.server.chats[-1]) == 50
        assert ("Harm" in bench.server.chats[-1].text) is bool(gone)


SPLIT, FINE = [0] * 4 + [1] * 4, [n / 8 for n in range(8)]
GRADED, FEW = ["bad", "so", "so", "good"], [0.1, 0.2, 0.9, 0.2]
CHOICES: dict[str, Any] = {"choices": ("bad", "so", "good")}
WORTH: list[tuple[Scale, list[Any], list[float], float | None, str]] = [
    # Standard errors: 0.217 of four beside four, 0.144 of eight that all differ.
    # Only where the one-sided 95 % bound is below one half: at chance it stands.
    (SHARE, SPLIT, [0.4, 0.5, 0.6, 0.7, 0, 0.1, 0.65, 0.2], 3 / 16, "standing"),
    (SHARE, SPLIT, [0.4, 0.5, 0.6, 0.7, 0, 0.1, 0.55, 0.2], 2 / 16, "unproven"),
    (SHARE, FINE, [0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.8], 7 / 28, "unproven"),
    (SHARE, FINE, [0.7, 0.6, 0.5, 0.4, 0.3, 0.1, 0.2, 0.8], 8 / 28, "standing"),
    (SHARE, SPLIT, [0.5] * 8, 1 / 2, "standing"),
    (Boolean(), [False, True, True, True], FEW, 1, "standing"),
    (Categorical(**CHOICES, ordered=True), GRADED, FEW, 0.7, "standing"),
    (Categorical(**CHOICES), GRADED, FEW, None, "standing"),
    (Pairwise(), ["A", "B"] * 2, FEW, None, "standing"),
    (SHARE, [0.5] * 4, FEW, None, "standing"),
]


@pytest.mark.parametrize(("scale", "values", "answers", "auc", "status"), WORTH)
def test_worth_is_of_values_in_an_order_and_chance_is_told_from_what_says_nothing(
    scale: Scale, values: list[Any], answers: list[float], auc: float | None, status: str
) -> None:
    memory = graded(scale, values)
    teach(memory, "Rule")
    note(memory, {"Rule": answers})
    note(memory, {"Rule": [0.9, 0.1]}, "asked of less")
    [rule] = memory.guidelines()
    worth = None if auc is None else Worth(auc=auc, cases=len(values))
    assert (rule.worth, rule.status) == (worth, status)
    assert '"worth"' not in memory.export_jsonl()
