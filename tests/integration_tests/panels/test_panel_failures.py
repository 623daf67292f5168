"""A criterion that fails does not take the others with it, and is named."""

from typing import Any

import pytest
from langgraph.store.sqlite import SqliteStore

from memalign_graph import (
    Aggregate,
    ChatModelError,
    Feedback,
    InvalidInputError,
    JudgeMemory,
    ModelAnswerError,
)
from tests.conftest import CASE, OTHER, Bench
from tests.integration_tests.panels.support import (
    COLD,
    DOWN,
    FACTS,
    THREE,
    approved,
    asks_about,
    fails,
    form_of,
    judged_names,
    panel,
    put,
    reviewed,
    teach,
    values_of,
)
from tests.loopback import (
    ChatRequest,
    Rule,
    content_filter,
    disconnect,
    error,
    raw,
    refusal,
    truncated,
)

NAMES = [one.name for one in THREE]
FAILURES: dict[str, tuple[Any, str]] = {
    "down": (DOWN, "It broke"),
    "rate": (error(429, "Slow down.", retry_after=0), "Slow down"),
    "key": (error(401, "Wrong key."), "Wrong key"),
    "no-json": (raw("<html>"), ""),
    "hung-up": (disconnect(), ""),
    "prose": ("Well.", "gave no answer that can be used to judge"),
    "off-scale": ({"rationale": "So.", "value": "maybe"}, "'maybe' is not on the scale"),
    "cut": (truncated('{"rat'), "gave no answer that can be used to judge"),
    "refused": (refusal(), "gave no answer that can be used to judge"),
    "withheld": (content_filter(), "gave no answer that can be used to judge"),
}


@pytest.mark.parametrize("failure", list(FAILURES))
async def test_judge_that_fails_is_named_and_the_others_judge(bench: Bench, failure: str) -> None:
    reply, words = FAILURES[failure]
    bench.server.rules = [fails("facts", reply)]
    given = await bench.invoke(panel(bench), CASE)
    assert values_of(given) == {"tone": True, "length": True}
    assert given["errors"].keys() == {"facts"}
    assert words in given["errors"]["facts"]
    assert (await bench.state(panel(bench))).next == ()


async def test_form_says_which_could_not_be_judged(bench: Bench) -> None:
    bench.server.rules = [fails("facts", {"rationale": "[x](http://x) <b>", "value": "?"})]
    graph = reviewed(bench)
    form = form_of(await bench.invoke(graph, CASE))
    assert "### facts: not judged" in form["description"]
    assert "[x](" not in form["description"].replace("\\[", "")
    assert set(form["args"]) == {"tone", "tone_rationale", "length", "length_rationale"}
    given = await bench.resume(graph, approved())
    assert given["feedback"].keys() == {"tone", "length"}


async def test_deciding_on_what_was_not_judged_is_refused(bench: Bench) -> None:
    bench.server.rules = [fails("facts")]
    graph = reviewed(bench)
    await bench.invoke(graph, CASE)
    why = await bench.refuse(graph, {"facts": {"type": "approve"}})
    assert "facts: there is no judgment to decide on" in why
    given = await bench.resume(graph, {"facts": "Wrong."})
    assert given["learned"].keys() == {"facts"}


BROKEN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fact": ("facts", "9", {"id": "9", "kind": "fact", "at_us": 9e18}),
    "word": ("words", "x", {"key": "x"}),
    "head": ("head", "head", {"nothing": 1}),
}


@pytest.mark.parametrize("kind", list(BROKEN))
async def test_memory_that_can_not_be_read_is_named_and_the_others_judge(
    bench: Bench, kind: str
) -> None:
    label, key, item = BROKEN[kind]
    await put(bench, ("memalign", "facts", label), key, item)
    given = await bench.invoke(panel(bench), CASE)
    assert values_of(given) == {"tone": True, "length": True}
    assert given["errors"].keys() == {"facts"}


@pytest.mark.parametrize("bench", ["sqlite-sync"], indirect=True)
@pytest.mark.parametrize("vector", ["###", "AAAA", 3], ids=["no-text", "cut", "number"])
async def test_vector_that_can_not_be_read_harms_no_other_criterion(
    bench: Bench, tmp_path: Any, vector: Any
) -> None:
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as other:
        embeddings = bench.server.embedder()
        JudgeMemory(other, FACTS, embeddings=embeddings).remember(
            Feedback.model_validate({**OTHER, **COLD})
        )
        [item] = other.search(("memalign", "facts", "vectors"))
        other.put(tuple(item.namespace), item.key, {**item.value, "vector": vector})
    given = await bench.invoke(panel(bench), CASE)
    assert given["judgments"].keys() >= {"tone", "length"}
    assert given["judgments"].keys() | given["errors"].keys() == set(NAMES)


async def test_memory_that_breaks_while_the_expert_thinks_keeps_the_others_learning(
    bench: Bench,
) -> None:
    graph = reviewed(bench)
    await bench.invoke(graph, CASE)
    label, key, item = BROKEN["head"]
    await put(bench, ("memalign", "facts", label), key, item)
    given = await bench.resume(graph, dict.fromkeys(NAMES, COLD))
    assert given["learned"].keys() == {"tone", "length"}
    assert given["errors"].keys() == {"facts"}


async def test_word_on_a_memory_that_can_not_be_read_is_said_and_the_others_learn(
    bench: Bench,
) -> None:
    label, key, item = BROKEN["fact"]
    await put(bench, ("memalign", "facts", label), key, item)
    graph = reviewed(bench)
    asked = await bench.invoke(graph, CASE)
    assert "### facts: not judged" in form_of(asked)["description"]
    given = await bench.resume(graph, dict.fromkeys(NAMES, COLD))
    assert given["learned"].keys() == {"tone", "length"}
    assert given["errors"].keys() == {"facts"}
    assert "can't be read" in given["errors"]["facts"]


async def test_all_failing_is_one_error(bench: Bench) -> None:
    bench.server.rules = [fails(name) for name in NAMES]
    with pytest.raises(ChatModelError, match="None of the 3 criteria could be judged") as caught:
        await bench.invoke(panel(bench), CASE)
    assert "It broke" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_all_answers_unusable_is_that_error(bench: Bench) -> None:
    bench.server.rules = [Rule(lambda _: True, reply="Well.")]
    with pytest.raises(ModelAnswerError, match="None of the 3 criteria could be judged"):
        await bench.invoke(panel(bench), CASE)


async def test_run_of_which_all_failed_goes_on_when_the_model_is_back(bench: Bench) -> None:
    graph = reviewed(bench)
    bench.server.rules = [fails(name) for name in NAMES]
    with pytest.raises(ChatModelError):
        await bench.invoke(graph, CASE)
    bench.server.rules = [fails("facts")]
    given = await bench.invoke(graph, None)
    assert given["judgments"].keys() == {"tone", "length"}
    assert given["errors"].keys() == {"facts"}
    assert set(form_of(given)["args"]) >= {"tone", "length"}
    given = await bench.resume(graph, {"tone": COLD})
    assert given["learned"].keys() == {"tone"}
    assert given["errors"].keys() == {"facts"}


async def test_new_run_after_all_failed_is_as_the_first(bench: Bench) -> None:
    graph = panel(bench)
    bench.server.rules = [fails(name) for name in NAMES]
    with pytest.raises(ChatModelError):
        await bench.invoke(graph, CASE)
    bench.server.rules = []
    given = await bench.invoke(graph, CASE)
    assert given["judgments"].keys() == set(NAMES)
    assert given["errors"] == {}


async def test_judge_asks_once_more_where_the_answer_is_unusable(bench: Bench) -> None:
    seen: set[str] = set()

    def is_first(chat: ChatRequest) -> bool:
        [name] = [one for one in NAMES if asks_about(one)(chat)]
        is_new = name not in seen
        seen.add(name)
        return is_new

    bench.server.rules = [Rule(is_first, reply="Well.")]
    given = await bench.invoke(panel(bench), CASE)
    assert given["errors"] == {}
    assert judged_names(bench.server, NAMES) == sorted(NAMES * 2)


async def test_missing_criterion_is_missing_in_the_aggregate(bench: Bench) -> None:
    bench.server.rules = [fails("facts")]
    rule = Aggregate(weights={"tone": 3, "length": 0}, vetoes={"facts": True}, passes=0.5)
    given = await bench.invoke(panel(bench, aggregate=rule), CASE)
    assert given["aggregate"] == {
        "score": 1.0,
        "passed": False,
        "parts": {"tone": 1.0, "length": 1.0},
        "vetoed_by": [],
        "missing": ["facts"],
    }
    graph = reviewed(bench, aggregate=rule)
    await bench.invoke(graph, CASE, "u")
    corrected = await bench.resume(graph, {"facts": True, "tone": False}, "u")
    assert corrected["aggregate"] == {
        "score": 0.25,
        "passed": False,
        "parts": {"tone": 0.0, "facts": 1.0, "length": 1.0},
        "vetoed_by": [],
        "missing": [],
    }


async def test_namespace_that_can_not_be_used_is_one_sentence(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match="namespace"):
        await bench.invoke(panel(bench), CASE, context={"namespace": ["a.b"]})
    assert bench.server.chats == []


async def test_failing_judge_leaves_the_memory_as_it_was(bench: Bench) -> None:
    await teach(bench, FACTS)
    before = await bench.episodes(criterion=FACTS)
    bench.server.rules = [fails("facts")]
    await bench.invoke(panel(bench), CASE)
    assert await bench.episodes(criterion=FACTS) == before
