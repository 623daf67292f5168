"""Deciding by evidence: in judge and review graphs, gates and panels, with any memory."""

import json
import threading
from typing import Any

import pytest

from memalign_graph import (
    Criterion,
    Judgment,
    MemAlignContext,
    Pairwise,
    Uncertain,
    add_quality_gate,
    create_panel_graph,
)
from memalign_graph.errors import EmbeddingError
from memalign_graph.evidence.regression import KernelRegression
from memalign_graph.review.forms import shown_judgments
from memalign_graph.review.requests import _TEMPLATES
from tests.builders import make_judgment
from tests.conftest import CRITERION, EVERY_WAY, Bench, Graph, judgings
from tests.integration_tests.evidence.judging_support import (
    Judge,
    case,
    earlier,
    learn,
    measurings,
    truth,
    word,
    words,
)
from tests.integration_tests.gates.support import Writer, asked, models, writing
from tests.loopback import answer, error

OTHER = Criterion(name="length", instructions="Is the reply short?")
NEXT = 98
"""A new case like those that experts found wrong, and the judge finds right."""


def judgment(value: Any) -> dict[str, Any]:
    """What the judge had said of a case, as stored before judges had keys."""
    fields = {"criterion": CRITERION.name, "model": "gpt-4.1-mini-2025-04-14"}
    return make_judgment(value=value, **fields).to_json()


async def fill(bench: Bench, count: int = 24, *, judged: bool = True) -> None:
    """A memory of cases whose judge always said yes."""
    fields: Any = {"judgment": judgment(value=True)} if judged else {}
    await bench.remember(*words(count, **fields))


async def judged(bench: Bench, number: int = NEXT, on: str = "t", **options: Any) -> dict[str, Any]:
    graph = bench.judge_graph(**{"decide": "evidence", **options})
    judgment: dict[str, Any] = (await bench.invoke(graph, case(number), on))["judgment"]
    return judgment


def with_verdicts(count: int, verdict_of: Any) -> list[dict[str, Any]]:
    """What experts say of some cases, and what the judge said of them before."""
    return [word(number, judgment=judgment(verdict_of(number))) for number in range(count)]


AUTO: dict[str, tuple[list[Any], str, Any]] = {
    "few cases": (
        with_verdicts(4, lambda _: True),
        "The verdict decides: memory has 4 cases",
        True,
    ),
    "few verdicts": (
        [*with_verdicts(4, lambda _: True), *words(24)[4:]],
        "The verdict decides: of 24 cases in memory with an expert's value 4 have the judge's own",
        True,
    ),
    "a judge as good": (with_verdicts(24, truth), "The verdict decides: on 24 cases", True),
    "ten verdicts": (
        [*with_verdicts(12, lambda _: True), *words(24)[12:]],
        "The evidence decides: on 12 cases",
        False,
    ),
}


@pytest.mark.parametrize(("feedback", "reason", "value"), AUTO.values(), ids=AUTO)
async def test_by_itself_the_evidence_decides_where_it_beats_the_judges_own_verdicts(
    bench: Bench, feedback: list[Any], reason: str, value: Any
) -> None:
    bench.server.responder = Judge()
    await bench.remember(*feedback)
    judgment = await judged(bench, decide="auto")
    assert judgment["evidence"]["reason"].startswith(reason)
    assert f"The {judgment['evidence']['decided_by']} decides" in reason
    assert judgment["value"] is value
    otherwise = " By the experts' values of similar cases it is false, not true as the judge says."
    assert judgment["rationale"] == f"Seen {NEXT}." + ("" if value else otherwise)
    # Where both say the same there is nothing to add.
    same = await judged(bench, NEXT - 2, "same", decide="auto")
    assert same["rationale"] == f"Seen {NEXT - 2}."


async def test_what_decides_is_what_has_to_be_trusted(bench: Bench) -> None:
    """The evidence is right on all cases, and the judge's verdicts on half of them."""
    bench.server.responder = Judge()
    half = with_verdicts(96, lambda number: truth(number) == bool(number // 4 % 2))
    await bench.remember(*half)
    graph = bench.review_graph(review=Uncertain(target_agreement=0.8, sample_share=0))
    judgment = (await bench.invoke(graph, case(NEXT)))["judgment"]
    assert (judgment["evidence"]["decided_by"], judgment["review"]["reasons"]) == ("evidence", [])


async def test_by_itself_an_empty_memory_calls_no_embeddings(bench: Bench) -> None:
    for options in ({}, {"k": 0}, {"use_episodes": False}):
        judgment = (await bench.invoke(bench.judge_graph(**options), case(NEXT), "t"))["judgment"]
        assert judgment["evidence"]["reason"].startswith("The verdict decides: memory has 0 cases")
    assert bench.server.embeddings == []


@EVERY_WAY
async def test_the_neighbours_outvote_a_judge_that_is_often_wrong(bench: Bench) -> None:
    await fill(bench)
    judgment = await judged(bench)
    assert (truth(NEXT), judgment["value"]) == (False, False)
    evidence = judgment["evidence"]
    decided = [evidence[name] for name in ("decided_by", "verdict", "estimate", "cases")]
    assert decided == ["evidence", True, False, 24]
    assert evidence["reason"].startswith("The evidence decides: on 24 cases")
    assert (evidence["verdict_error"], evidence["evidence_error"]) == (0.5, 0.0)
    assert evidence["weights"].keys() == {"judge", "neighbours"}
    nearest = evidence["neighbours"][0]
    assert nearest["value"] is False
    assert nearest["similarity"] > evidence["neighbours"][-1]["similarity"]
    assert (judgment["confidence_source"], judgment["calibrated_on"]) == ("evidence", 24)
    assert judgment["confidence"] == pytest.approx(evidence["probabilities"]["false"], abs=0.3)
    assert Judgment.model_validate(json.loads(json.dumps(judgment))).verdict is True
    known = await judged(bench, 2, "known")  # has its own vote
    assert known["evidence"]["neighbours"][0]["similarity"] == pytest.approx(1)
    assert known["evidence"]["neighbours"][0]["episode_ids"][0] in known["episode_ids"]
    # What is forgotten leaves no trace.
    [added] = await bench.remember(word(50, value=True, author="eve"))
    assert (await judged(bench, on="b"))["evidence"]["cases"] == 25
    await bench.call(bench.memory(), "forget", added.id)
    after = await judged(bench, on="c")
    assert (after["evidence"], after["confidence"]) == (evidence, judgment["confidence"])


async def test_neither_the_verdict_nor_the_prompt_needs_examples(bench: Bench) -> None:
    await fill(bench)
    bench.server.embeddings.clear()
    plain = await judged(bench, decide="verdict", k=0)
    assert (plain["value"], plain["evidence"], plain["confidence"]) == (True, None, None)
    base = await judged(bench, decide="auto", use_episodes=False, use_guidelines=False)
    assert (base["value"], base["evidence"]) == (True, None)
    assert bench.server.embeddings == []
    for options in ({"k": 0}, {"use_episodes": False}):
        result = await judged(bench, on=str(options), **options)
        assert (result["value"], result["episode_ids"]) == (False, [])
    assert not any(earlier(chat) for chat in judgings(bench.server))
    assert [len(request.texts) for request in bench.server.embeddings] == [1, 1]
    graph = bench.judge_graph(decide="evidence")
    result = await bench.invoke(graph, case(NEXT), "k", context=MemAlignContext(k=0))
    assert (result["judgment"]["value"], result["judgment"]["episode_ids"]) == (False, [])


async def test_verdicts_that_knew_the_experts_value_are_not_weighed(bench: Bench) -> None:
    await fill(bench, judged=False)
    graph = bench.review_graph(decide="evidence")
    for number in range(12):
        reply = {"value": truth(number), "author": "bob"}
        await bench.review(graph, reply, case(number), f"{number}")
    judgment = await judged(bench)
    assert (judgment["value"], judgment["evidence"]["decided_by"]) == (False, "evidence")
    assert "and one value for all 0.5" in judgment["evidence"]["reason"]
    assert judgment["evidence"]["verdict_error"] is None
    assert judgment["evidence"]["weights"] == {"neighbours": 1.0}


async def test_dead_embeddings(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    await fill(bench)
    bench.server.responder = Judge()
    other = bench.server.embedder(dimensions=32)
    embedded_again = await judged(bench, on="again", embeddings=other)
    assert (embedded_again["value"], embedded_again["evidence"]["cases"]) == (False, 24)
    dead = [error(401, "The embeddings are dead.")] * 9
    bench.server.script_embeddings(*dead)
    judgment = await judged(bench, k=0, on_embedding_error="guidelines")
    assert (judgment["value"], judgment["evidence"]["decided_by"]) == (True, "verdict")
    assert "the case has no embedding" in judgment["evidence"]["reason"]
    assert (judgment["evidence"]["cases"], judgment["evidence"]["neighbours"]) == (24, [])
    assert "The embeddings are dead" in judgment["warnings"][0]
    with pytest.raises(EmbeddingError, match="The embeddings are dead"):
        await judged(bench, k=0, on="u")
    # Nor does a memory count that was embedded otherwise.
    other = bench.server.embedder(model="text-embedding-3-large", max_retries=0)
    bench.server.script_embeddings(*dead)
    options: Any = {"embeddings": other, "on_embedding_error": "guidelines", "confidence": True}
    judgment = await judged(bench, on="v", **options)
    assert (judgment["evidence"]["cases"], judgment["calibrated_on"]) == (0, None)
    assert judgment["confidence"] == pytest.approx(0.7)
    assert "cases without vectors do not count" in caplog.text


async def test_what_is_reviewed_is_weighed_the_next_time(bench: Bench) -> None:
    bench.server.responder = Judge(belief=lambda number: 0.9 if truth(number) else 0.6)
    graph = bench.review_graph(confidence=True, decide="evidence", k=0)
    for number in range(16):
        reply = {"value": truth(number), "author": "ann"}
        done = await bench.review(graph, reply, case(number), f"t{number}")
        assert done["judgment"]["evidence"]["cases"] == number
    kept: Any = [episode.judgment for episode in await bench.episodes()]
    assert {judgment.verdict for judgment in kept} == {True}
    held = sorted(round(judgment.probabilities["true"], 3) for judgment in kept)
    assert held == [0.6] * 8 + [0.9] * 8
    judgment = (await bench.invoke(graph, case(NEXT), "new"))["judgment"]
    assert (judgment["evidence"]["cases"], judgment["evidence"]["decided_by"]) == (16, "evidence")
    assert "judge" in judgment["evidence"]["weights"]
    assert judgment["value"] is False


async def taught(bench: Bench, **options: Any) -> None:
    # Right on every other case of each topic, and always sure.
    bench.server.responder = Judge(
        value=lambda number: truth(number) == bool(number // 4 % 2), belief=lambda _: 0.8
    )
    await learn(bench, words(24), "learn", **options)
    bench.server.chats.clear()


def gate(bench: Bench, draft: int = NEXT, **options: Any) -> Graph:
    """A graph whose answer the gate is to judge as one of the cases."""
    builder = writing(Writer(*[str(case(draft)["outputs"])] * 3))
    options = {"revise": "write", "max_revisions": 1, "decide": "evidence", **options}
    example: Any = lambda _: case(draft)  # noqa: E731 - a caller's own function
    return bench.compile(
        add_quality_gate(
            builder, CRITERION, after="write", example=example, **models(bench, **options)
        )
    )


JUDGED: Any = {"judgment": judgment(value=True)}
FITS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "to decide": (words(24, **JUDGED), {"decide": "auto"}),
    "all values alike": (words(24, value=True), {"decide": "evidence"}),
    "to ask": (words(24), {"review": Uncertain(sample_share=0), "confidence": True}),
}


@EVERY_WAY
@pytest.mark.parametrize(("feedback", "options"), FITS.values(), ids=FITS)
async def test_the_fit_is_shared_counted_and_leaves_the_event_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, feedback: list[Any], options: dict[str, Any]
) -> None:
    bench.server.responder = Judge()
    await bench.remember(*feedback)
    threads = []
    fit = KernelRegression.__init__

    def noted(*args: Any, **kwargs: Any) -> None:
        threads.append(threading.current_thread())
        fit(*args, **kwargs)

    monkeypatch.setattr(KernelRegression, "__init__", noted)
    view = bench.memory().access.view
    make = bench.review_graph if "review" in options else bench.judge_graph
    for number in range(2):
        await bench.invoke(make(**options), case(NEXT), f"t{number}")
    assert len(threads) == 1  # one version of the memory is fitted once
    assert (threads[0] is threading.main_thread()) is not bench.awaits
    fitted = sum(getattr(part, "nbytes", 0) for part in view.derived_cache.values())
    assert fitted > 1.5 * view.index.nbytes  # three times the vectors
    counted = view.nbytes
    view.derived_cache.clear()
    assert view.nbytes == counted - fitted


async def test_the_evidence_routes_a_gate(bench: Bench) -> None:
    await taught(bench, confidence=True)
    verdict = (await bench.invoke(gate(bench, confidence=True), asked()))["quality_gate"]
    assert (verdict["status"], verdict["value"]) == ("exhausted", False)
    assert verdict["decided_by"] == "judge"
    evidence = verdict["judgment"]["evidence"]
    assert (evidence["decided_by"], evidence["verdict"]) == ("evidence", True)
    assert verdict["judgment"]["probabilities"]["true"] == pytest.approx(0.8)
    assert len(measurings(bench)) == len(judgings(bench.server))
    # The judge's words speak for the answer, which did not pass.
    assert f"Seen {NEXT}." not in verdict["critique"]
    assert "Experts did not accept the answers most like this one." in verdict["critique"]
    result = await bench.invoke(gate(bench, decide="verdict"), asked(), "verdict")
    verdict = result["quality_gate"]
    assert (verdict["status"], verdict["judgment"]["evidence"]) == ("accepted", None)
    # Where both refuse, the judge's reason is in the critique.
    verdict = (await bench.invoke(gate(bench, NEXT - 4), asked(), "both"))["quality_gate"]
    assert verdict["value"] is False
    assert f"Seen {NEXT - 4}." in verdict["critique"]


@pytest.mark.parametrize("says", [False, True])
async def test_an_expert_confirms_no_outvoted_words(bench: Bench, *, says: bool) -> None:
    await taught(bench)
    graph = gate(bench, review="always")
    stopped = await bench.invoke(graph, asked())
    [interrupt] = stopped["__interrupt__"]
    [request] = interrupt.value["action_requests"]
    assert "### The judge says: true" in request["description"]
    assert "### The evidence says: false" in request["description"]
    [shown] = shown_judgments(interrupt.response_schema["x-case"])
    macros: Any = _TEMPLATES.get_template("parts.html.jinja").module
    shown_by_page = f'{CRITERION.name}: Yes</b> <b dir="auto">The evidence says: No</b>'
    assert shown_by_page in macros.verdicts([shown])
    assert request["args"]["value"] is False
    done = await bench.resume(graph, {"value": says})
    assert done["quality_gate"]["decided_by"] == "expert"
    bench.server.chats.clear()
    await bench.invoke(bench.judge_graph(k=20), case(NEXT + 4), "next")
    [chat] = judgings(bench.server)
    assert NEXT in earlier(chat)
    # What the judge said for true is no reason for false; nor what outvoted it one for true.
    assert f"Seen {NEXT}." not in chat.text


async def test_each_judge_of_a_panel_weighs_its_own_memory(bench: Bench) -> None:
    def panel(**options: Any) -> Graph:
        return bench.compile(create_panel_graph([CRITERION, OTHER], **models(bench, **options)))

    await taught(bench, confidence=True)
    await learn(bench, words(24, value=True), "other", criterion=OTHER)
    bench.server.chats.clear()
    embedded = len(bench.server.embeddings)
    graph = panel(decide="evidence", confidence=True, k=0)
    judgments = (await bench.invoke(graph, case(NEXT)))["judgments"]
    tone, length = judgments[CRITERION.name], judgments[OTHER.name]
    assert (tone["value"], tone["evidence"]["decided_by"]) == (False, "evidence")
    assert (length["value"], length["evidence"]["decided_by"]) == (True, "verdict")
    assert tone["probabilities"]["true"] == pytest.approx(0.8)
    assert not any(earlier(chat) for chat in judgings(bench.server))
    assert len(bench.server.embeddings) == embedded + 1
    stopped = await bench.invoke(panel(decide="evidence", review="always"), case(NEXT), "form")
    [request] = stopped["__interrupt__"][0].value["action_requests"]
    assert request["args"][CRITERION.name] is False
    assert "The judge itself says true, because:" in request["description"]


async def test_a_judges_key_names_the_options_that_change_its_verdict(bench: Bench) -> None:
    better = Criterion(name="better", instructions="Which is kinder?", scale=Pairwise())
    pair = {"inputs": "Where is it?", "outputs": ["Soon.", "No idea."]}

    async def key(**options: Any) -> str:
        graph = bench.judge_graph(better, **options)
        return str((await bench.invoke(graph, pair))["judgment"]["judge_key"])

    bench.server.responder = lambda _: answer({"rationale": "Kinder.", "value": "A"})
    others: list[dict[str, Any]] = [
        {"use_guidelines": False},
        {"use_episodes": False},
        {"swap": True},
        {"checks": True},
        {"small_model": True},
    ]
    keys = [await key(), *[await key(**options) for options in others]]
    assert len(set(keys)) == 1 + len(others)
    same: list[dict[str, Any]] = [{"k": 1}, {"decide": "verdict"}, {"max_guideline_tokens": 900}]
    assert {await key(**options) for options in same} == {keys[0]}
