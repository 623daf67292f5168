"""`review="uncertain"`: whom it asks, what it says why, and that a resume decides nothing anew."""

from typing import Any

import pytest

from memalign_graph import (
    InvalidInputError,
    MemAlignContext,
    Uncertain,
    create_judge_graph,
    create_review_graph,
)
from tests.conftest import CASE, CRITERION, Bench, distillings, judgings
from tests.integration_tests.evidence.uncertain_support import (
    case,
    description,
    judged_feedback,
    log,
    review_of,
    sure,
    teach,
    uncertain_graph,
)
from tests.loopback import Rule, error


async def test_asks_always_while_there_is_too_little_feedback(bench: Bench) -> None:
    graph = uncertain_graph(bench)
    bench.server.rules = sure(0.999)
    given = await bench.invoke(graph, case(1))
    assert review_of(given) == (True, ["too_little_feedback", "no_similar_episode"])
    assert "too little feedback" in description(given)
    await bench.resume(graph, {"value": True})
    await teach(bench, 27, doubtful=0)
    given = await bench.invoke(graph, case(7), "u")
    assert review_of(given) == (True, ["too_little_feedback"])
    assert given["judgment"]["review"]["threshold"] is None


async def test_asks_where_it_is_not_sure_and_nowhere_else(bench: Bench) -> None:
    await teach(bench)
    graph = uncertain_graph(bench)
    bench.server.rules = sure(0.97)
    given = await bench.invoke(graph, case(5000), "sure")
    assert review_of(given) == (False, [])
    assert (given["feedback"], given["learned"]) == (None, None)
    threshold = given["judgment"]["review"]["threshold"]
    assert given["judgment"]["confidence"] >= threshold > 0.8
    bench.server.rules = sure(0.6)
    given = await bench.invoke(graph, case(5001), "doubt")
    assert review_of(given) == (True, ["unsure"])
    assert given["judgment"]["confidence"] < threshold
    shown = description(given)
    assert "You are asked because the judge is not sure enough." in shown
    assert f"Confidence: {given['judgment']['confidence']:.0%} (calibrated on 80 cases)." in shown


async def test_resume_neither_judges_nor_decides_nor_logs_again(bench: Bench) -> None:
    await teach(bench)
    graph = uncertain_graph(bench, sample_share=0.5)
    bench.server.rules = sure(0.6)
    parts = await bench.stream(graph, case(5000), stream_mode="updates")
    assert [next(iter(one)) for one in parts[2:]] == ["judge", "decide_review", "__interrupt__"]
    judged, logged = len(judgings(bench.server)), await log(bench)
    assert len(logged) == 1
    given = await bench.resume(graph, {"value": False, "rationale": "Say sorry first."})
    assert len(judgings(bench.server)) == judged
    assert len(distillings(bench.server)) == 1
    assert await log(bench) == logged
    assert given["feedback"]["judgment"]["review"] == given["judgment"]["review"]
    episodes = {one.example_id: one for one in await bench.episodes()}
    kept = episodes[given["judgment"]["example_id"]].judgment
    assert kept is not None
    assert kept.to_json() == given["judgment"]


async def test_refused_reply_leaves_the_decision_as_it_is(bench: Bench) -> None:
    graph = uncertain_graph(bench)
    bench.server.rules = sure(0.9)
    asked = await bench.invoke(graph, case(1))
    assert "neither a value nor a rationale" in await bench.refuse(graph, {"author": "ann"})
    given = await bench.resume(graph, {"value": True})
    assert given["judgment"] == asked["judgment"]
    assert len(await log(bench)) == 1


async def test_node_that_runs_again_decides_the_same(bench: Bench) -> None:
    """As after a crash between the log and the checkpoint."""
    await teach(bench)
    graph = uncertain_graph(bench, sample_share=0.5, per_day=1)
    bench.server.rules = sure(0.6)
    given = await bench.invoke(graph, case(5000))
    assert given["judgment"]["review"]["asks"]
    before = await before_deciding(bench, graph)
    again = await graph.ainvoke(None, before) if bench.awaits else graph.invoke(None, before)
    assert again["judgment"] == given["judgment"]
    assert "__interrupt__" in again
    assert len(await log(bench)) == 1


async def before_deciding(bench: Bench, graph: Any) -> Any:
    """The config of the checkpoint from which `decide_review` runs next."""
    config: Any = {"configurable": {"thread_id": "t"}}
    if bench.awaits:
        history = [one async for one in graph.aget_state_history(config)]
    else:
        history = list(graph.get_state_history(config))
    return next(one.config for one in history if one.next == ("decide_review",))


async def test_random_share_is_drawn_by_the_judgment(bench: Bench) -> None:
    await teach(bench)
    bench.server.rules = sure(0.97)
    given = await bench.invoke(uncertain_graph(bench, sample_share=1), case(5000))
    assert review_of(given) == (True, ["sample"])
    assert "drawn by chance" in description(given)


async def test_model_without_log_probabilities_is_asked_about(bench: Bench) -> None:
    await teach(bench)
    given = await bench.invoke(uncertain_graph(bench), case(5000))
    assert given["judgment"]["confidence"] is None
    assert review_of(given) == (True, ["unsure"])


async def test_failing_confidence_call_is_asked_about(bench: Bench) -> None:
    await teach(bench)
    bench.server.rules = [
        Rule(lambda chat: "logprobs" in chat.body, reply=error(400, "no logprobs here"))
    ]
    model = bench.server.chat_model(max_retries=0)
    given = await bench.invoke(uncertain_graph(bench, model=model), case(5000))
    assert review_of(given) == (True, ["unsure"])


async def test_evidence_alone_can_choose(bench: Bench) -> None:
    await teach(bench)
    graph = uncertain_graph(bench, confidence=False, decide="evidence")
    given = await bench.invoke(graph, case(5000))
    assert given["judgment"]["evidence"] is not None
    assert isinstance(review_of(given)[0], bool)
    assert given["judgment"]["confidence"] is not None


@pytest.mark.parametrize("told", ["always", "never"])
async def test_context_switches_it_off(bench: Bench, told: str) -> None:
    graph = uncertain_graph(bench)
    bench.server.rules = sure(0.9)
    given = await bench.invoke(graph, case(1), context={"review": told})
    assert ("__interrupt__" in given) == (told == "always")
    assert given["judgment"]["review"] is None
    assert await log(bench) == []


async def test_context_switches_it_on(bench: Bench) -> None:
    await teach(bench)
    graph = uncertain_graph(bench, review="always")
    bench.server.rules = sure(0.97)
    context = {"review": "uncertain"}
    given = await bench.invoke(graph, case(5000), "a", context=context)
    # By default one in twenty is drawn by chance.
    assert review_of(given)[1] in ([], ["sample"])
    assert "__interrupt__" in await bench.invoke(graph, case(5001), "b")
    assert len(await log(bench)) == 1


async def test_callable_goes_before_it_where_the_context_says_nothing(bench: Bench) -> None:
    graph = uncertain_graph(bench, review=lambda judgment: judgment.confidence < 0.5)
    bench.server.rules = sure(0.9)
    given = await bench.invoke(graph, case(1))
    assert "__interrupt__" not in given
    assert await log(bench) == []


async def test_graph_that_cannot_choose_says_so_before_any_model_is_called(bench: Bench) -> None:
    graph = bench.review_graph()
    with pytest.raises(InvalidInputError, match=r"review: .*confidence=True, decide=") as caught:
        await bench.invoke(graph, CASE, context={"review": "uncertain"})
    assert "\n" not in str(caught.value)
    assert bench.server.chats == []


async def test_judge_graph_asks_nobody_whatever_the_context_says(bench: Bench) -> None:
    context = MemAlignContext(review="uncertain")
    given = await bench.invoke(bench.judge_graph(), CASE, context=context)
    assert given["judgment"]["review"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"review": "uncertain"}, "review: .*confidence=True"),
        ({"review": "uncertain", "confidence": False}, "review: .*confidence=True"),
        ({"review": Uncertain()}, "review: .*confidence=True"),
        ({"review": "unsure", "confidence": True}, "'always', 'never', 'uncertain'"),
    ],
)
async def test_wrong_options_are_one_sentence(
    bench: Bench, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInputError, match=said) as caught:
        create_review_graph(CRITERION, **options)
    assert "\n" not in str(caught.value)


async def test_graphs_that_ask_nobody_have_no_such_option(bench: Bench) -> None:
    options: Any = {"review": Uncertain()}
    with pytest.raises(InvalidInputError, match=r"^review: is not a field"):
        create_judge_graph(CRITERION, **options)


async def test_node_is_only_where_it_can_be_used(bench: Bench) -> None:
    nodes = [
        set(bench.review_graph(**options).nodes)
        for options in ({}, {"confidence": True}, {"decide": "evidence"})
    ]
    assert ["decide_review" in one for one in nodes] == [False, True, True]


async def test_case_unlike_all_others_is_asked_about_however_sure(bench: Bench) -> None:
    await teach(bench)
    bench.server.rules = sure(0.97)
    strange = {"inputs": "Wie spät ist es auf dem Mond?", "outputs": "Keine Ahnung, ehrlich."}
    given = await bench.invoke(uncertain_graph(bench), strange)
    assert review_of(given)[1][0] == "no_similar_episode"
    assert "memory holds nothing like this case" in description(given)


@pytest.mark.parametrize("options", [{"k": 0}, {"use_episodes": False}])
async def test_judge_that_is_shown_no_cases_is_not_asked_about_for_that(
    bench: Bench, options: dict[str, Any]
) -> None:
    await teach(bench)
    bench.server.rules = sure(0.97)
    given = await bench.invoke(uncertain_graph(bench, **options), case(5000))
    assert review_of(given) == (False, [])


async def test_failed_embedding_is_asked_about(bench: Bench) -> None:
    await teach(bench)
    embeddings = bench.server.embedder(max_retries=0)
    graph = uncertain_graph(bench, embeddings=embeddings, on_embedding_error="guidelines")
    bench.server.rules = sure(0.97)
    bench.server.script_embeddings(error(500, "down", retry_after=0))
    given = await bench.invoke(graph, case(5000))
    assert given["judgment"]["warnings"]
    assert review_of(given) == (True, ["no_similar_episode"])


async def test_forgetting_changes_trust_as_if_it_had_never_been_there(bench: Bench) -> None:
    await teach(bench, 50, doubtful=10)
    wrong = [judged_feedback(2000 + number, value=False, held=0.98) for number in range(4)]
    memory = bench.memory()

    async def trust() -> Any:
        return await memory.atrust() if bench.awaits else memory.trust()

    before = await trust()
    assert before.threshold is not None
    if bench.awaits:
        stored = await memory.aremember(wrong)
        assert await trust() != before
        await memory.aforget([one.id for one in stored])
    else:
        stored = memory.remember(wrong)
        assert await trust() != before
        memory.forget([one.id for one in stored])
    assert await trust() == before


async def test_trust_tells_what_the_graph_goes_by(bench: Bench) -> None:
    await teach(bench)
    memory = bench.memory()
    bench.server.rules = sure(0.97)
    for target in (0.8, 0.9):
        graph = uncertain_graph(bench, target_agreement=target)
        given = await bench.invoke(graph, case(5000), str(target))
        options: Any = {"target_agreement": target}
        trust = await memory.atrust(**options) if bench.awaits else memory.trust(**options)
        assert trust.threshold == given["judgment"]["review"]["threshold"]
        assert trust.bound is not None
        assert trust.bound >= target
        assert 0 < trust.coverage <= 1
    wrong: Any = "votes"
    with pytest.raises(InvalidInputError, match="decide: 'votes'"):
        memory.trust(decide=wrong)
    with pytest.raises(InvalidInputError, match="target_agreement: 2"):
        memory.trust(target_agreement=2)
