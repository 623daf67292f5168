"""Which seen cases are judged again, and how many of them a guideline may lose."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import ChatModelError, Episode, Example, Guideline, JudgeMemory, Judgment
from memalign_graph.alignment.replay import _is_beyond_chance, replay, select_cases
from memalign_graph.alignment.report import Replay
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.guidelines import GuidelineOperation
from memalign_graph.tracing import MeteredIO
from tests.builders import make_judgment
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


def on_arc(texts: Sequence[str]) -> list[list[float]]:
    """Embeddings of cases by their numbers: the nearer the numbers, the more similar."""
    angles = [int(text.split()[1].rstrip(".")) / 100 for text in texts]
    return [[math.cos(angle), math.sin(angle)] for angle in angles]


def remembered(count: int, authors: str = "a") -> tuple[JudgeMemory, list[Episode]]:
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=on_arc)
    cases = [
        {"inputs": f"Case {number}", "outputs": ".", "value": True, "author": author}
        for number in range(count)
        for author in authors
    ]
    return memory, memory.remember(cases)


def replayed(
    memory: JudgeMemory,
    judge: Callable[[int, set[str]], bool],
    operations: Sequence[GuidelineOperation],
) -> tuple[list[GuidelineOperation], Replay]:
    """Replay with a judge that is told a case's number and the guidelines' texts."""

    async def judge_case(
        example: Example, *, guidelines: Sequence[Guideline], **_: Any
    ) -> Judgment:
        number, texts = int(str(example.inputs).split()[1]), {each.text for each in guidelines}
        return make_judgment(example.id, value=judge(number, texts))

    return run_sync(
        replay(
            MeteredIO(SYNC),
            memory.access,
            judge_case,
            operations,
            max_cases=20,
            limit=1,
            report=lambda _done, _all: None,
        )
    )


def test_a_lost_case_that_can_not_be_judged_again_is_not_counted() -> None:
    memory, episodes = remembered(7)
    judged = Counter[int]()

    def judge(number: int, texts: set[str]) -> bool:
        judged[number] += 1
        if judged[0] == 3 and number == 0:
            refused = ChatModelError("Refused.")
            refused.is_refusal = True
            raise refused
        return number > 3 or not texts

    kept, outcome = replayed(memory, judge, [add("Be kind.", episodes[0].id)])
    assert (kept, len(outcome.broken)) == ([], 3)
    assert (outcome.agreed_before, outcome.agree_after, len(outcome.failed)) == (6, 6, 1)


@pytest.mark.parametrize(("count", "retained"), [(2, ["A.", "B."]), (3, [])])
def test_a_guideline_that_loses_three_cases_is_dropped(count: int, retained: list[str]) -> None:
    """Of two guidelines, each loses so many cases."""
    memory, episodes = remembered(12)
    loser_of = dict.fromkeys(range(count), "A.") | dict.fromkeys(range(count, 2 * count), "B.")
    operations = [add("A.", episodes[0].id), add("B.", episodes[1].id)]
    kept, _ = replayed(memory, lambda number, texts: loser_of.get(number) not in texts, operations)
    assert [operation.text for operation in kept] == retained


def test_a_guideline_that_fixes_as_many_cases_as_it_regresses_stays() -> None:
    memory, episodes = remembered(10)
    operations = [add("A.", episodes[0].id)]
    kept, outcome = replayed(
        memory, lambda number, texts: number > 6 or bool(texts) is (number < 4), operations
    )
    assert kept == operations
    assert (outcome.newly_agree, outcome.agreed_before, outcome.agree_after) == (4, 6, 3)


def test_what_a_dropped_guideline_was_to_replace_stays() -> None:
    memory, episodes = remembered(6)
    old = memory.add_guideline("Old.")
    new = add("A.", episodes[0].id).model_copy(update={"guideline_id": "a"})
    retiring = {"action": "retire", "guideline_id": old.id, "superseded_by": "a"}
    operations = [new, GuidelineOperation.model_validate({**retiring, "settled": True})]
    kept, outcome = replayed(memory, lambda _, texts: "A." not in texts, operations)
    assert (kept, len(outcome.broken)) == ([], 6)


def test_one_in_four_of_the_cases_judged_again_is_a_sample_of_all() -> None:
    memory, episodes = remembered(100)

    def choose() -> list[int]:
        choosing = select_cases(SYNC, memory.access, [add("Be kind.", episodes[0].id)], 20)
        return [int(str(case.example.inputs).split()[1]) for case in run_sync(choosing)]

    chosen = choose()
    assert choose() == chosen
    assert chosen[:15] == list(range(15))
    assert len({*chosen[15:]}) == 5
    assert min(chosen[15:]) >= 20


def test_sampled_cases_have_all_their_experts() -> None:
    memory, episodes = remembered(100, "abc")
    choosing = select_cases(SYNC, memory.access, [add("Be kind.", episodes[0].id)], 20)
    assert [len(case.episodes) for case in run_sync(choosing)] == [3] * 20
