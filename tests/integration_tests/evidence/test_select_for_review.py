"""What to ask first, from memories in real stores, called both ways."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from langgraph.store.base import SearchOp
from langgraph.store.memory import InMemoryStore

from memalign_graph import (
    Boolean,
    Categorical,
    Criterion,
    EmbeddingError,
    Example,
    InvalidInputError,
    JudgeMemory,
    Judgment,
    Numeric,
    ReviewCandidate,
)
from memalign_graph.evidence import design
from tests.conftest import CRITERION, ONE_WAY, TWO_WAYS, Bench
from tests.integration_tests.evidence.uncertain_support import is_value_alone, sure
from tests.loopback import LoopbackServer, error

PARCELS = [f"My parcel number {number} never arrived at my house" for number in range(6)]
CUPS = [f"The porcelain cup {number} came broken into pieces" for number in range(4)]
PASSWORDS = [f"Reset the forgotten password of account {number} please" for number in range(2)]
BACKLOG = [{"inputs": text, "outputs": "Ask the desk."} for text in PARCELS + CUPS + PASSWORDS]


async def select(bench: Bench, backlog: Any, n: Any, **options: Any) -> list[ReviewCandidate]:
    return await choose(bench, bench.memory(), backlog, n, **options)


async def choose(
    bench: Bench, memory: JudgeMemory, backlog: Any, n: Any, **options: Any
) -> list[ReviewCandidate]:
    if bench.awaits:
        return await memory.aselect_for_review(backlog, n, **options)
    return memory.select_for_review(backlog, n, **options)


def places(found: Sequence[ReviewCandidate]) -> list[int]:
    return [one.index for one in found]


def embedded(server: LoopbackServer) -> list[str]:
    texts = [text for request in server.embeddings for text in request.texts]
    server.embeddings.clear()
    return texts


def judgment(case: Any, confidence: float | None = None, **fields: Any) -> Judgment:
    given = {
        "criterion": CRITERION.name,
        "example_id": Example.model_validate(case).id,
        "value": True,
        "rationale": "So it is.",
        "confidence": confidence,
        "memory_version": "0" * 32,
    }
    return Judgment.model_validate(given | fields)


async def stored(bench: Bench) -> list[tuple[Any, ...]]:
    search = [SearchOp((), limit=10_000)]
    try:
        [items] = await bench.store.abatch(search)
    except NotImplementedError:
        [items] = bench.store.batch(search)
    return sorted((one.namespace, one.key, str(one.value)) for one in items)  # type: ignore[union-attr]


async def test_each_kind_of_case_is_asked_about(bench: Bench) -> None:
    found = await select(bench, BACKLOG, 3)
    assert places(found)[0] in range(6)
    assert {_kind(at) for at in places(found)} == {"parcel", "cup", "password"}
    assert [one.example.inputs for one in found] == [BACKLOG[one.index]["inputs"] for one in found]
    assert [(one.uncertainty, one.novelty) for one in found] == [(1, 1)] * 3
    assert found[0].spread == 1
    assert found[1].spread > 0.3
    assert 1 > found[0].gain > found[2].gain > 0


def _kind(at: int) -> str:
    return "parcel" if at < 6 else "cup" if at < 10 else "password"


async def test_what_the_memory_knows_is_asked_about_last(bench: Bench) -> None:
    await bench.remember(*({**BACKLOG[at], "value": True} for at in (0, 1, 2)))
    found = await select(bench, BACKLOG, 20)
    assert set(places(found)) == set(range(3, 12))
    assert {_kind(at) for at in places(found)[:2]} == {"cup", "password"}
    by_place = {one.index: one for one in found}
    assert by_place[3].novelty < 0.3 < by_place[7].novelty
    assert by_place[3].uncertainty < by_place[7].uncertainty


async def test_experts_who_differ_draw_questions(bench: Bench) -> None:
    agreed = [{**BACKLOG[at], "value": True} for at in (0, 1, 2)]
    differing = [{**BACKLOG[at], "value": at % 2 == 0} for at in (6, 7, 8)]
    await bench.remember(*agreed, *differing)
    found = {one.index: one for one in await select(bench, BACKLOG, 20)}
    assert found[9].uncertainty > found[3].uncertainty + 0.1


async def test_differing_numbers_draw_questions(bench: Bench) -> None:
    criterion = Criterion(
        name="stars", instructions="How good?", scale=Numeric(minimum=1, maximum=5)
    )
    agreed = [{**BACKLOG[at], "value": 4} for at in (0, 1, 2)]
    differing = [{**BACKLOG[at], "value": value} for at, value in ((6, 1), (7, 5), (8, 2))]
    await bench.remember(*agreed, *differing, criterion=criterion)
    memory = bench.memory(criterion)
    found = {one.index: one for one in await choose(bench, memory, BACKLOG, 20)}
    assert found[9].uncertainty > found[3].uncertainty + 0.1


async def test_nothing_is_picked_twice_and_nothing_that_was_valued(bench: Bench) -> None:
    await bench.remember({**BACKLOG[1], "value": False, "author": "ann"})
    again = [*BACKLOG, *BACKLOG, Example.model_validate(BACKLOG[0])]
    found = await select(bench, again, 100)
    assert sorted(places(found)) == [0, *range(2, 12)]


async def test_case_with_a_rationale_alone_may_be_asked_about(bench: Bench) -> None:
    await bench.remember({**BACKLOG[1], "rationale": "Too cold."})
    assert 1 in places(await select(bench, BACKLOG, 100))


async def test_forgotten_case_may_be_asked_about_again(bench: Bench) -> None:
    await bench.remember(*({**case, "value": True} for case in BACKLOG))
    assert await select(bench, BACKLOG, 5) == []
    memory = bench.memory()
    ids = [one.id for one in await bench.episodes() if one.example.inputs == CUPS[0]]
    if bench.awaits:
        await memory.aforget(ids)
    else:
        memory.forget(ids)
    assert places(await select(bench, BACKLOG, 5)) == [6]


async def test_value_from_an_earlier_scale_is_no_value(bench: Bench) -> None:
    await bench.remember({**BACKLOG[0], "value": True})
    grades = Categorical(choices=("bad", "good"))
    memory = bench.memory(CRITERION.model_copy(update={"scale": grades}))
    found = await choose(bench, memory, BACKLOG[:2], 5)
    assert sorted(places(found)) == [0, 1]
    assert [one.novelty for one in found] == [1, 1]


async def test_cases_apart_in_their_reference_alone_are_two(bench: Bench) -> None:
    case = {"inputs": "q", "outputs": "a"}
    backlog = [case, {**case, "reference_outputs": "r"}, {"inputs": "other", "outputs": "b"}]
    found = await select(bench, backlog, 5)
    assert places(found)[-1] in (0, 1)
    assert found[-1].spread == pytest.approx(0, abs=1e-5)
    assert len(embedded(bench.server)) == 2


@TWO_WAYS
@pytest.mark.parametrize(("backlog", "n"), [([], 3), (BACKLOG, 0), ((), 0)])
async def test_nothing_asked_for_embeds_nothing(bench: Bench, backlog: Any, n: int) -> None:
    assert await select(bench, backlog, n) == []
    assert embedded(bench.server) == []


async def test_each_text_is_embedded_once_and_none_is_stored(bench: Bench) -> None:
    await bench.remember({**BACKLOG[0], "value": True}, {**BACKLOG[1], "rationale": "Too cold."})
    embedded(bench.server)
    before = await stored(bench)
    await select(bench, BACKLOG * 2, 4)
    texts = embedded(bench.server)
    # Of the one that was valued nothing is needed, of the other the vector is there.
    assert sorted(texts) == sorted(f"{case['inputs']}\n\nAsk the desk." for case in BACKLOG[2:])
    assert await stored(bench) == before


@TWO_WAYS
async def test_large_backlog_is_embedded_in_batches(bench: Bench) -> None:
    backlog = [{"inputs": f"Question {number}", "outputs": "a"} for number in range(600)]
    found = await select(bench, backlog, 5)
    assert len(set(places(found))) == 5
    assert sorted(len(request.texts) for request in bench.server.embeddings) == [88, 256, 256]


async def test_any_order_and_every_store_pick_the_same(bench: Bench) -> None:
    known = [{**BACKLOG[at], "value": at > 3} for at in (2, 8)]
    await bench.remember(*known)
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=bench.server.embedder())
    memory.remember(known)
    expected = [one.example.id for one in memory.select_for_review(BACKLOG, 6)]
    assert [one.example.id for one in await select(bench, BACKLOG, 6)] == expected
    shuffled = BACKLOG[7:] + BACKLOG[6::-1]
    assert [one.example.id for one in await select(bench, shuffled, 6)] == expected


async def test_judge_that_is_unsure_draws_questions(bench: Bench) -> None:
    shares = dict.fromkeys(range(12), 0.97) | {9: 0.5, 11: 0.6}
    judgments = [judgment(BACKLOG[at], share) for at, share in shares.items()]
    judgments = judgments[5:] + judgments[4::-1]
    found = await select(bench, BACKLOG, 3, judgments=judgments)
    assert set(places(found)[:2]) == {9, 11}
    by_place = {one.index: one.uncertainty for one in found}
    assert by_place[9] == 1
    assert by_place[11] == pytest.approx(0.8)
    as_json = [one.to_json() for one in reversed(judgments)]
    assert await select(bench, BACKLOG, 3, judgments=as_json) == found


async def test_judge_less_sure_than_a_guess_counts_as_one(bench: Bench) -> None:
    judgments = [judgment(BACKLOG[at], 0.1 * at) for at in range(11)]
    found = {one.index: one for one in await select(bench, BACKLOG, 12, judgments=judgments)}
    expected = [1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0, 1]
    assert [found[at].uncertainty for at in range(12)] == pytest.approx(expected)


@TWO_WAYS
@pytest.mark.parametrize(
    ("scale", "value", "expected"),
    [
        (Boolean(), True, 0.5),
        (Categorical(choices=("a", "b", "c", "d")), "a", 1 / 3),
        (Numeric(minimum=0, maximum=1), 0.5, 0.25),
    ],
)
async def test_confidence_is_measured_from_a_guess(
    bench: Bench, scale: Any, value: Any, expected: float
) -> None:
    memory = bench.memory(CRITERION.model_copy(update={"scale": scale}))
    judgments = [judgment(BACKLOG[0], 0.75, value=value)]
    [found] = await choose(bench, memory, BACKLOG[:1], 1, judgments=judgments)
    assert found.uncertainty == pytest.approx(expected, abs=1e-6)


async def test_of_several_judgments_the_least_sure_counts(bench: Bench) -> None:
    judgments = [judgment(BACKLOG[0], share) for share in (0.9, 0.6, 0.95, None)]
    [found] = await select(bench, BACKLOG[:1], 1, judgments=judgments)
    assert found.uncertainty == pytest.approx(0.8)


async def test_judgments_without_confidence_change_nothing(bench: Bench) -> None:
    await bench.remember({**BACKLOG[0], "value": True})
    expected = await select(bench, BACKLOG, 5)
    judgments = [judgment(case) for case in BACKLOG]
    assert await select(bench, BACKLOG, 5, judgments=judgments) == expected
    assert await select(bench, BACKLOG, 5, judgments=[]) == expected


async def test_what_a_graph_says_can_be_given(bench: Bench) -> None:
    [unsure], [certain] = sure(0.55), sure(0.99)
    hard = replace(unsure, when=lambda chat: is_value_alone(chat) and CUPS[2] in chat.text)
    bench.server.rules = [hard, certain]
    graph = bench.judge_graph(confidence=True)
    said = [await bench.invoke(graph, case, on=f"t{at}") for at, case in enumerate(BACKLOG)]
    judgments = [one["judgment"] for one in said]
    [found] = await select(bench, BACKLOG, 1, judgments=judgments)
    assert found.index == 8
    assert found.uncertainty == pytest.approx(0.9, abs=0.01)


async def test_judgments_on_other_cases_are_passed_over_aloud(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    other = judgment({"inputs": "elsewhere", "outputs": "a"}, 0.5)
    judgments = [judgment(BACKLOG[0], 0.6), other]
    assert len(await select(bench, BACKLOG, 2, judgments=judgments)) == 2
    assert "1 of 2 judgments are on no example of the backlog" in caplog.text


async def test_long_cases_are_compared_by_their_beginnings_aloud(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    long = {"inputs": "the quick brown fox " * 2_000, "outputs": "a"}
    assert len(await select(bench, [long, BACKLOG[0]], 2)) == 2
    assert "1 of 2 cases are longer than the 8000 bytes" in caplog.text


VALID = judgment(BACKLOG[0], 0.5).to_json()
WRONG: list[tuple[Any, Any, Any, str]] = [
    (BACKLOG, -1, None, "n: -1 is not a whole number from 0 on."),
    (BACKLOG, True, None, "n: True is not a whole number from 0 on."),
    (BACKLOG, "3", None, "n: '3' is not a whole number from 0 on."),
    (BACKLOG, 2.0, None, "n: 2.0 is not a whole number from 0 on."),
    (BACKLOG, None, None, "n: None is not a whole number from 0 on."),
    ("a text", 1, None, "examples: give a list, also of one, not a value of type str."),
    (BACKLOG[0], 1, None, "examples: give a list, also of one, not a value of type dict."),
    (None, 1, None, "examples: give a list, also of one, not a value of type NoneType."),
    (iter(BACKLOG), 1, None, "examples: give a list, also of one, not a value of type list_it"),
    ([*BACKLOG, "text"], 1, None, "examples[12]: example: give an Example, or an object with"),
    ([{"inputs": "q"}], 1, None, "examples[0]: outputs: is missing: give it."),
    ([{"inputs": "q", "outputs": " "}], 1, None, "examples[0]: outputs: must not be empty"),
    ([{"inputs": "q", "outputs": {1}}], 1, None, "examples[0]: outputs holds a value of type set"),
    ([{"inputs": "q", "outputs": "a", "label": 1}], 1, None, "examples[0]: label: is not a field"),
    (BACKLOG, 1, VALID, "judgments: give a list, also of one, not a value of type dict."),
    (BACKLOG, 1, "sure", "judgments: give a list, also of one, not a value of type str."),
    (BACKLOG, 1, [0.5], "judgments[0]: give a Judgment, or the object that a graph returns"),
    (BACKLOG, 1, [VALID, {"value": True}], "judgments[1]: criterion: is missing: give it."),
    (
        BACKLOG,
        1,
        [{**VALID, "criterion": "facts"}],
        "judgments[0]: is of the criterion 'facts', not of 'support_tone': give judgments made",
    ),
    (BACKLOG, 1, [{**VALID, "confidence": 7}], "judgments[0]: confidence: "),
    (BACKLOG, 1, [{**VALID, "confidence": float("nan")}], "judgments[0]: confidence: "),
    (BACKLOG[1:], 1, [VALID], "judgments: none of the 1 is on an example of the backlog: give"),
]


@TWO_WAYS
@pytest.mark.parametrize(("backlog", "n", "judgments", "problem"), WRONG)
async def test_what_cannot_be_used_is_refused_before_anything_is_embedded(
    bench: Bench, backlog: Any, n: Any, judgments: Any, problem: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        await select(bench, backlog, n, judgments=judgments)
    assert str(caught.value).startswith(problem)
    assert str(caught.value).count("\n") == 0
    assert embedded(bench.server) == []
    assert await stored(bench) == []


async def test_failed_embedding_is_told(bench: Bench) -> None:
    bench.server.script_embeddings(error(400, "No."))
    with pytest.raises(EmbeddingError):
        await select(bench, BACKLOG, 2)


def test_embedder_whose_vectors_changed_in_length_is_told() -> None:
    lengths = iter((3, 4))

    def changing(texts: Sequence[str]) -> list[list[float]]:
        length = next(lengths)
        return [[1.0] * length for _ in texts]

    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=changing)
    memory.remember({**BACKLOG[0], "value": True})
    with pytest.raises(EmbeddingError, match="vectors of 4 dimensions, but this memory holds 3"):
        memory.select_for_review(BACKLOG, 2)


@ONE_WAY
async def test_memory_of_another_embedder_is_embedded_anew(bench: Bench) -> None:
    await bench.remember({**BACKLOG[0], "value": True})
    other = bench.memory(embeddings=bench.server.embedder(model="text-embedding-3-large"))
    embedded(bench.server)
    found = await choose(bench, other, BACKLOG, 12)
    assert len(embedded(bench.server)) == 12
    assert {one.index: one.novelty for one in found}[1] < 0.3


def test_event_loop_goes_on_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    choosing = design.pick

    def watched(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return choosing(*args)

    monkeypatch.setattr(design, "pick", watched)
    memory = JudgeMemory(
        InMemoryStore(), CRITERION, embeddings=lambda texts: [[1.0, 0.0]] * len(texts)
    )
    asyncio.run(memory.aselect_for_review(BACKLOG, 2))
    assert threads[0] is not threading.main_thread()
    memory.select_for_review(BACKLOG, 2)
    assert threads[1] is threading.main_thread()


@ONE_WAY
async def test_labels_asked_for_in_rounds_reach_every_kind(bench: Bench) -> None:
    asked: list[int] = []
    for _ in range(3):
        [found] = await select(bench, BACKLOG, 1)
        asked.append(found.index)
        await bench.remember({**BACKLOG[found.index], "value": True})
    assert {_kind(at) for at in asked} == {"parcel", "cup", "password"}


def test_candidate_says_why_in_json() -> None:
    example = Example.model_validate(BACKLOG[0])
    one = ReviewCandidate(
        example=example, index=3, gain=0.1, uncertainty=0.5, novelty=0.25, spread=1
    )
    assert ReviewCandidate.model_validate(one.to_json()) == one
    assert set(one.to_json()) == {"example", "index", "gain", "uncertainty", "novelty", "spread"}
