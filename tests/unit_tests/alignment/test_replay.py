"""Which seen cases are judged again, and how many of them a guideline may lose."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import ChatModelError, Example, Guideline, JudgeMemory
from memalign_graph.alignment.replay import _is_beyond_chance, replay, select_cases
from memalign_graph.io import SYNC, run_sync
from memalign_graph.tracing import MeteredIO
from tests.unit_tests.alignment.alignment_cases import CRITERION, add


@pytest.mark.parametrize(
    ("lost", "won", "is_dropped"),
    [
        (2, 0, False),
        (3, 0, True),
        (4, 1, False),
        (5, 1, False),
        (6, 1, True),
        (7, 2, True),
        (7, 3, False),
        (0, 3, False),
    ],
)
def test_only_a_loss_beyond_chance_drops_a_guideline(
    lost: int,
    won: int,
    is_dropped: bool,  # noqa: FBT001 - a value
) -> None:
    assert _is_beyond_chance(lost, won) is is_dropped


def test_a_lost_case_that_can_not_be_judged_again_is_not_counted() -> None:
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=on_arc)
    cases = [{"inputs": f"Case {number}", "outputs": ".", "value": True} for number in range(6)]
    episodes = memory.remember(cases)
    judged = Counter[str]()

    async def judge(
        example: Example, guidelines: Sequence[Guideline], _excluded: frozenset[str]
    ) -> bool:
        judged[str(example.inputs)] += 1
        if judged["Case 0"] == 3 and example.inputs == "Case 0":
            refused = ChatModelError("Refused.")
            refused.is_refusal = True
            raise refused
        return example.inputs != "Case 0" or not guidelines

    operations = [add("Be kind.", episodes[0].id)]
    _, outcome = run_sync(
        replay(
            MeteredIO(SYNC),
            memory.access,
            judge,
            operations,
            before=[],
            new_episodes=[],
            max_cases=6,
            limit=1,
            report=lambda _done, _all: None,
        )
    )
    assert (outcome.agreed_before, outcome.agree_after, len(outcome.failed)) == (5, 5, 1)
    assert outcome.turned_by_episodes == []


def on_arc(texts: Sequence[str]) -> list[list[float]]:
    """Embeddings of cases by their numbers: the nearer the numbers, the more similar."""
    angles = [int(text.split()[1].rstrip(".")) / 100 for text in texts]
    return [[math.cos(angle), math.sin(angle)] for angle in angles]


def test_one_in_four_of_the_cases_judged_again_is_a_sample_of_all() -> None:
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=on_arc)
    cases = [{"inputs": f"Case {number}", "outputs": ".", "value": True} for number in range(100)]
    episodes = memory.remember(cases)
    choosing = select_cases(SYNC, memory.access, [add("Be kind.", episodes[0].id)], 20)
    chosen = [int(str(case.example.inputs).split()[1]) for case in run_sync(choosing)]
    assert chosen[:15] == list(range(15))
    assert len({*chosen[15:]}) == 5
    assert min(chosen[15:]) >= 20
