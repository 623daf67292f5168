"""Cases to ask about however sure the judge is: unlike all others, or in contradictory company."""

from typing import Any

import numpy as np
import pytest

from memalign_graph import Categorical, Criterion, Numeric
from memalign_graph.evidence.asking import flags_of
from memalign_graph.evidence.process import current_process, divisions
from memalign_graph.io import BLOCKING, run
from memalign_graph.scales import Boolean
from tests.unit_tests.evidence.review_support import (
    YES_NO,
    filled,
    flags_at,
    judged,
    on_circle,
    on_narrow_cone,
)

UNLIKE = ["no_similar_episode"]
DIVIDED = ["episodes_disagree"]
GRADES = Categorical(choices=("bad", "fair", "good"), ordered=True)
SCORE = Numeric(minimum=0, maximum=10)


@pytest.mark.parametrize("embeddings", [on_circle, on_narrow_cone])
def test_case_unlike_all_others_is_flagged_whatever_the_embedder(embeddings: Any) -> None:
    memory = filled(*(judged(at, value=True) for at in range(40)), embeddings=embeddings)
    assert flags_at(memory, 20.5) == []
    assert flags_at(memory, 39.9) == []
    assert flags_at(memory, 100) == UNLIKE
    assert flags_at(memory, -60) == UNLIKE


@pytest.mark.parametrize("embeddings", [on_circle, on_narrow_cone])
def test_cases_like_those_in_memory_are_seldom_flagged(embeddings: Any) -> None:
    rng = np.random.default_rng(3)
    flagged = []
    for _ in range(30):
        memory = filled(
            *(judged(rng.uniform(0, 180), value=True) for _ in range(60)), embeddings=embeddings
        )
        flagged += [flags_at(memory, rng.uniform(0, 180)) == UNLIKE for _ in range(10)]
    assert sum(flagged) / len(flagged) <= 0.08


def test_case_in_memory_is_not_unlike_itself() -> None:
    memory = filled(*(judged(at, value=True) for at in range(40)), judged(150, value=True))
    assert flags_at(memory, 150) == []


def test_few_free_texts_flag_nothing_but_an_empty_memory_does() -> None:
    assert flags_at(filled(), 0) == UNLIKE
    for count in (1, 2, 5, 18):
        memory = filled(*(judged(20 * at, value=at % 2 == 0) for at in range(count)))
        assert [flags_at(memory, at) for at in (5, 90, 200)] == [[], [], []]


def test_case_without_an_embedding_is_flagged() -> None:
    memory = filled(*(judged(at, value=True) for at in range(40)))
    process = run(current_process(BLOCKING, memory.access))
    assert flags_of(process, memory.access.view, None) == UNLIKE


def test_memory_of_equal_texts_flags_what_differs_alone() -> None:
    memory = filled(*(judged(30 + at / 1000, value=True) for at in range(40)))
    assert flags_at(memory, 30.0205) == []
    assert flags_at(memory, 33) == UNLIKE


@pytest.mark.parametrize(("count", "told"), [(18, []), (19, UNLIKE)])
def test_unlike_needs_nineteen_cases(count: int, told: list[str]) -> None:
    memory = filled(*(judged(at, value=True) for at in range(count)))
    assert flags_at(memory, 120) == told


@pytest.mark.parametrize(
    ("near", "expected"),
    [
        ([[0.0, 1.0]] * 5, 0),
        ([[0.0, 1.0]] * 3 + [[1.0, 0.0]] * 2, 0.4),
        ([[0.5, 0.5]], 0.5),
        ([[0.5], [0.5], [0.75], [0.75], [1.0]], 0.25),
        ([[0.2], [0.8]], 0.3),
        ([[0.2]], 0),
    ],
)
def test_division_is_the_minority_or_what_the_middle_half_spans(near: Any, expected: float) -> None:
    assert divisions(np.array([near])).tolist() == pytest.approx([expected])


def values_around(scale: Any) -> tuple[Any, Any]:
    """Two values of a scale that are far apart."""
    if isinstance(scale, Numeric):
        return scale.minimum, scale.maximum
    return (True, False) if isinstance(scale, Boolean) else (scale.choices[0], scale.choices[-1])


@pytest.mark.parametrize(
    "scale", [Boolean(), Categorical(choices=("a", "b", "c")), GRADES, SCORE], ids=lambda s: s.type
)
def test_case_in_contradictory_company_is_flagged(scale: Any) -> None:
    criterion = Criterion(name="tone", instructions="How is it?", scale=scale)
    low, high = values_around(scale)
    calm = [judged(2 * at, low, criterion=criterion) for at in range(80)]
    torn = [
        judged(250 + at, value, criterion=criterion)
        for at, value in enumerate([low, high, low, high, high])
    ]
    memory = filled(*calm, *torn, criterion=criterion)
    assert flags_at(memory, 252.5) == DIVIDED
    assert flags_at(memory, 60.5) == []


def test_experts_who_differ_on_the_very_cases_are_seen() -> None:
    calm = [judged(3 * at, value=True) for at in range(60)]
    torn = [
        judged(250 + at, value, author=author)
        for at in range(5)
        for author, value in (("ann", True), ("bob", False))
    ]
    assert flags_at(filled(*calm, *torn), 252.5) == DIVIDED
    agreed = [judged(250 + at, value=True, author=a) for at in range(5) for a in ("ann", "bob")]
    assert flags_at(filled(*calm, *agreed), 252.5) == []


def test_memory_that_is_contradictory_everywhere_does_not_ask_everywhere() -> None:
    rng = np.random.default_rng(5)
    memory = filled(*(judged(at, bool(rng.random() < 0.6)) for at in range(0, 180, 2)))
    flagged = [flags_at(memory, at + 1) for at in range(0, 178, 2)]
    assert sum("episodes_disagree" in one for one in flagged) / len(flagged) <= 0.12


def test_changed_scale_leaves_values_aside_that_are_not_on_it() -> None:
    numbers = Criterion(name="tone", instructions="How is it?", scale=SCORE)
    before = filled(*(judged(at, 2 + at % 9) for at in range(40)), criterion=numbers)
    memory = filled(criterion=YES_NO, store=before.access.store)
    assert flags_at(memory, 20) == UNLIKE


def test_forgetting_is_as_if_it_had_never_been_there() -> None:
    calm = [judged(3 * at, value=True) for at in range(50)]
    torn = [judged(250 + at, value=at % 2 == 0) for at in range(4)]
    whole, never = filled(*calm, *torn), filled(*calm)
    places = [at / 2 for at in range(-100, 700, 7)]
    before = [flags_at(never, at) for at in places]
    assert [flags_at(whole, at) for at in places] != before
    whole.forget([one.id for one in whole.episodes() if not 0 <= _angle(one) < 200])
    assert [flags_at(whole, at) for at in places] == before
    assert flags_at(whole, 252.5) == flags_at(never, 252.5) == UNLIKE


def _angle(episode: Any) -> float:
    return float(episode.example.inputs.split()[2])
