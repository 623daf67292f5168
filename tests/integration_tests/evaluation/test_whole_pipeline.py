"""A constant judge and a perfect judge give what they must, on every scale; folds are as told."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from memalign_graph import Criterion
from memalign_graph.errors import InvalidInputError
from tests.conftest import CRITERION
from tests.integration_tests.evaluation.support import (
    SCALES,
    VALUES,
    Caller,
    Model,
    earlier,
    judged,
    judgings,
    marker,
    perfect,
    plain,
    shown,
    word,
    words,
)
from tests.loopback import LoopbackServer


@pytest.mark.parametrize("scale", list(SCALES))
async def test_perfect_judge(call: Caller, server: LoopbackServer, scale: str) -> None:
    given = words(12, scale)
    server.responder = perfect(given)
    found = await call.cross_validate(SCALES[scale], given, resamples=40)
    for judge in ("base", "aligned"):
        scores = found.of(judge)
        assert (scores.cases, scores.failed) == (12, 0)
        for name, metric in scores.metrics.items():
            wanted = 0 if name == "mae" else 1
            assert metric.value == pytest.approx(wanted), name
            if metric.low is not None:
                assert (metric.low, metric.high) == pytest.approx((wanted, wanted)), name
        assert found.wrong(judge) == []
    (same,) = [one for one in found.comparisons if (one.judge, one.against) == ("aligned", "base")]
    for difference in same.differences.values():
        assert difference.value == pytest.approx(0)
    assert found.metric("base", "kappa").value == (None if scale == "number" else 1)
    assert found.metric("base", "ccc").value == (1 if scale in ("stars", "number") else None)


@pytest.mark.parametrize("scale", list(SCALES))
async def test_constant_judge(call: Caller, server: LoopbackServer, scale: str) -> None:
    given = words(12, scale)
    value = VALUES[scale][0]
    server.responder = Model(judge=lambda _: value)
    found = await call.cross_validate(SCALES[scale], given)
    base_rate = sum(one["value"] == value for one in given) / 12
    for judge in ("base", "aligned"):
        assert found.metric(judge, "exact_match").value == pytest.approx(base_rate)
        if scale != "number":
            assert found.metric(judge, "agreement").value == pytest.approx(base_rate)
            assert found.metric(judge, "kappa").value == pytest.approx(0)
        if scale in ("stars", "number"):
            assert found.metric(judge, "ccc").value == pytest.approx(0)
            error = sum(abs(one["value"] - value) for one in given) / 12
            assert found.metric(judge, "mae").value == pytest.approx(error)


async def test_sync_and_async_find_the_same(once: Caller, server: LoopbackServer) -> None:
    server.responder = Model(judge=lambda chat: judged(chat) % 4 > 0)
    awaited = Caller(server, awaits=True)
    for options in ({}, {"resamples": 30, "seed": 3, "group_by": "inputs"}):
        one = await once.cross_validate(CRITERION, words(9), **options)
        other = await awaited.cross_validate(CRITERION, words(9), **options)
        assert plain(one) == plain(other)


async def test_every_case_is_judged_once_by_each(call: Caller, server: LoopbackServer) -> None:
    """Twice in all, by the base judge without any memory, by the other with the other folds'."""
    found = await call.cross_validate(CRITERION, words(12), folds=4)
    assert sorted(judged(chat) for chat in judgings(server)) == sorted([*range(12)] * 2)
    folds = {int(str(case.example.inputs).split(":")[0][5:]): case.fold for case in found.cases}
    assert Counter(folds.values()) == {0: 3, 1: 3, 2: 3, 3: 3}
    with_memory = Counter(judged(chat) for chat in judgings(server) if shown(chat))
    without = Counter(judged(chat) for chat in judgings(server) if not shown(chat))
    assert with_memory == without == Counter(range(12))
    for chat in judgings(server):
        for number in {*shown(chat), *earlier(chat)}:
            assert folds[number] != folds[judged(chat)]


async def test_nothing_of_its_own_fold_is_in_any_prompt(
    call: Caller, server: LoopbackServer
) -> None:
    """Neither in what judges a case nor in what distilled its guidelines."""
    given = words(9)
    given += [word(n, author="bob", rationale=f"Bob: because{n}so.") for n in (0, 4)]
    given += [word(n, author="cy", value=None, rationale=f"Cy: because{n}so.") for n in (1, 30)]
    found = await call.cross_validate(CRITERION, given)
    folds = {int(str(case.example.inputs).split(":")[0][5:]): case.fold for case in found.cases}
    assert set(folds) == set(range(9))
    for chat in server.chats:
        if chat.schema_name == "judgment":
            assert all(folds.get(one) != folds[judged(chat)] for one in shown(chat))
        else:
            assert len({folds[one] for one in shown(chat) if one in folds}) <= 2
    for memory in found.memories:
        of_fold = [number for number, fold in folds.items() if fold == memory.fold]
        told = " ".join(one.text for one in memory.guidelines)
        assert not any(marker(number) in told for number in of_fold)
        assert marker(30) in told
    authors = {one.author for case in found.cases for one in case.experts}
    assert authors == {"ann", "bob", "cy"}


async def test_items_are_parted_by_inputs(call: Caller, server: LoopbackServer) -> None:
    """Two answers to one question: what is said of the one is not shown for the other."""
    given = words(6)
    given += [{**word(n), "outputs": f"Other answer {n}.", "value": False} for n in range(6)]
    await call.cross_validate(CRITERION, given, group_by="inputs")
    assert len(judgings(server)) == 24
    assert not any(judged(chat) in shown(chat) for chat in judgings(server))
    server.chats.clear()
    await call.cross_validate(CRITERION, given)
    assert any(judged(chat) in shown(chat) for chat in judgings(server))


async def test_items_of_a_function(call: Caller, server: LoopbackServer) -> None:
    given = words(8)

    def pair(example: Any) -> str:
        return str(int(example.inputs.split(":")[0][5:]) // 2)

    found = await call.cross_validate(CRITERION, given, group_by=pair)
    assert {case.group for case in found.cases} == {"0", "1", "2", "3"}
    for chat in judgings(server):
        assert not {judged(chat) ^ 1, judged(chat)} & shown(chat)


async def test_told_cases_are_never_learned_from(call: Caller, server: LoopbackServer) -> None:
    given = words(9)
    test = [word(n, author="bob", rationale=f"Bob: because{n}so.") for n in (0, 3, 40)]
    found = await call.cross_validate(CRITERION, given, test=iter(test))
    assert found.folds == 1
    assert sorted(judged(chat) for chat in judgings(server)) == sorted([0, 3, 40] * 2)
    for chat in server.chats:
        assert not shown(chat) & {0, 3, 40}
    (memory,) = found.memories
    assert memory.episodes == 7
    # What is held against a case is what is told with it, not what else there is on it.
    assert {one.author for case in found.cases for one in case.experts} == {"bob"}


async def test_told_cases_by_inputs(call: Caller, server: LoopbackServer) -> None:
    given = words(6)
    test = [{**word(2), "outputs": "Another answer."}]
    await call.cross_validate(CRITERION, given, test=test, group_by="inputs")
    assert not any(2 in shown(chat) for chat in server.chats)


async def test_what_needs_no_judge_stands_beside(once: Caller, server: LoopbackServer) -> None:
    given = [word(n, values=(True, True, True, False)) for n in range(12)]
    found = await once.cross_validate(CRITERION, given, resamples=30)
    assert [one.judge for one in found.scores] == ["constant", "nearest", "base", "aligned"]
    assert {(one.judge, one.against) for one in found.comparisons} == {
        ("base", "constant"),
        ("base", "nearest"),
        ("aligned", "base"),
        ("aligned", "constant"),
        ("aligned", "nearest"),
    }
    # Most are true, in whatever folds.
    assert {case.predictions["constant"] for case in found.cases} == {True}
    assert found.metric("constant", "agreement").value == pytest.approx(3 / 4)
    assert found.metric("constant", "kappa").value == pytest.approx(0)
    for name in ("agreement", "kappa"):
        for judge in ("base", "aligned"):
            assert found.metric(judge, name).value is not None


async def test_nearest_is_the_value_of_what_is_most_similar(once: Caller) -> None:
    given = [
        {**word(n), "inputs": f"{kind} {n}", "outputs": f"{kind} {kind}", "value": kind == "apple"}
        for n, kind in enumerate(["apple", "pear"] * 6)
    ]
    found = await once.cross_validate(CRITERION, given, k=1, test=given[:2])
    assert found.metric("nearest", "agreement").value == 1
    assert found.metric("constant", "agreement").value == pytest.approx(0.5)


async def test_nearest_without_a_memory_of_values(once: Caller, server: LoopbackServer) -> None:
    """Cases on which nobody gave a value predict what most cases have."""
    given = [*words(4, value=None), *[word(n) for n in range(50, 53)]]
    found = await once.cross_validate(
        CRITERION, given, test=[word(n) for n in (60, 61)], k=1, learn_from="words"
    )
    assert {case.predictions["nearest"] for case in found.cases} == {
        case.predictions["constant"] for case in found.cases
    }
    no_values = await once.cross_validate(CRITERION, words(4, value=None), test=[word(60)])
    assert no_values.cases[0].predictions == {}
    assert (no_values.of("constant").cases, no_values.of("constant").failed) == (0, 1)
    assert no_values.of("base").cases == 1


async def test_experts_are_compared(once: Caller) -> None:
    given = [
        *words(6),
        *[word(n, author="bob") for n in range(3)],
        word(3, author="bob", value=False),
    ]
    found = await once.cross_validate(CRITERION, given)
    assert found.experts.examples == 4
    assert len(found.experts.disagreements) == 1


@pytest.mark.parametrize(
    ("given", "options", "says"),
    [
        ([], {}, "folds: 3 folds need .* there are 0"),
        (words(2), {}, "folds: 3 folds need .* there are 2"),
        ({"inputs": 1}, {}, "feedback: give a list"),
        (words(5), {"folds": 1}, "folds: 1 is not"),
        (words(5), {"group_by": "outputs"}, "group_by: 'outputs' is not known"),
        (words(5), {"seed": -1}, "seed: -1 is not"),
        (words(5), {"resamples": -1}, "resamples: -1 is not"),
        (words(5), {"resamples": True}, "resamples: True is not"),
        (words(5), {"max_concurrency": 0}, "max_concurrency: 0 is not"),
        (words(5), {"progress": 7}, "progress: 7 is neither"),
        (words(5), {"cache": 7}, "cache: give a LangGraph store, or the path"),
        (words(5), {"k": -1}, "k: -1 is too little"),
        (words(5), {"learn_from": "all"}, "learn_from: 'all' is not known"),
        (words(5), {"guard": "all"}, "guard: 'all' is not known"),
        (words(5), {"batch_size": 0}, "batch_size: 0 is too little"),
        (words(5), {"models": ["a"]}, "models: is not a field"),
        (words(5), {"test": []}, "test: no case has a value"),
        (words(5), {"test": words(5)}, "feedback: nothing is left to learn from"),
        (words(5), {"model": "nonsense"}, "model: 'nonsense' names no model"),
    ],
)
async def test_what_can_not_be_used(
    once: Caller, server: LoopbackServer, given: Any, options: Any, says: str
) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{says}") as caught:
        await once.cross_validate(CRITERION, given, **options)
    assert "\n" not in str(caught.value)
    assert server.chats == []
    assert server.embeddings == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"swap": True}, "swap: only a criterion with scale=Pairwise"),
        ({"model": 5}, "model: "),
        ({"distill_model": 5}, "distill_model: "),
        ({"embeddings": 5}, "embeddings: "),
        ({"seed": 2**40}, "seed: "),
        ({"test": [{"inputs": "a"}]}, r"test\[0\]: "),
        ({"test": {"inputs": "a"}}, "test: give a list"),
        ({"cache": "."}, "cache: "),
    ],
)
async def test_what_can_not_be_used_is_told_before_any_model_is_called(
    once: Caller, server: LoopbackServer, options: Any, says: str
) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{says}"):
        await once.cross_validate(CRITERION, words(5), **options)
    assert server.chats == []
    assert server.embeddings == []


async def test_what_is_no_criterion(once: Caller) -> None:
    criterion: Any = "tone"
    with pytest.raises(InvalidInputError, match=r"^criterion: give a Criterion"):
        await once.cross_validate(criterion, words(5))


async def test_pairs_are_judged_in_both_orders(call: Caller, server: LoopbackServer) -> None:
    server.responder = Model(judge=lambda _: "A")
    found = await call.cross_validate(SCALES["pairwise"], words(6, "pairwise"), swap=True)
    assert len(judgings(server)) == 24
    # A judge that takes what stands first says nothing.
    assert {case.value_of("base") for case in found.cases} == {"tie"}


async def test_the_guard_judges_in_both_orders_as_the_judge_does(
    call: Caller, server: LoopbackServer
) -> None:
    server.responder = Model(judge=lambda _: "A")
    pairs = words(6, "pairwise")
    options: dict[str, Any] = {"swap": True, "guard": "replay"}
    await call.cross_validate(SCALES["pairwise"], pairs[:4], test=pairs[4:], **options)
    # What a judgment asks about: each once as it was given, and once the other way round.
    cases = [chat.text.rpartition("<case>")[2] for chat in judgings(server)]
    swapped = [case.index("Ask the post") < case.index("left the depot") for case in cases]
    assert len(cases) > 2 * 4  # more than the two that are tested, without memory and with it
    assert swapped.count(True) == swapped.count(False)


async def test_dates_decide_which_word_is_the_expert_s(once: Caller) -> None:
    late = datetime(2027, 1, 1, tzinfo=UTC).isoformat()
    given = words(6)
    turned = not given[0]["value"]
    newer = [{**given[0], "value": turned, "given_at": late}, *given]
    found = await once.cross_validate(CRITERION, newer)
    first = next(case for case in found.cases if "Case 0:" in str(case.example.inputs))
    assert first.expected is turned
    assert len(found.cases) == 6


async def test_criterion_of_any_name(once: Caller) -> None:
    criterion = Criterion(name="Größe & co/ 1", instructions="?")
    found = await once.cross_validate(criterion, words(4), folds=2)
    assert found.criterion == criterion
    assert found.to_json()["criterion"]["name"] == "Größe & co/ 1"
