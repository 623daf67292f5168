"""Graphs that decide by evidence: with any memory, store and embedder, sync and async."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from langgraph.store.base import PutOp, SearchOp

from memalign_graph import (
    Criterion,
    Judgment,
    MemAlignContext,
    Numeric,
    create_alignment_graph,
    create_judge_graph,
    create_review_graph,
)
from memalign_graph.errors import EmbeddingError, InvalidInputError
from memalign_graph.memory import view
from tests.conftest import CRITERION, Bench
from tests.integration_tests.evidence.judging_support import (
    Judge,
    asks_for_value,
    case,
    earlier,
    truth,
    verdicts,
    word,
    words,
)
from tests.loopback import error

NEW_FIELDS = ("confidence_source", "calibrated_on", "probabilities", "evidence", "review")


def judgment(number: int, value: Any, **fields: Any) -> dict[str, Any]:
    """What the judge had said of a case."""
    return Judgment(
        criterion=CRITERION.name,
        example_id="",
        value=value,
        rationale="So it seemed.",
        memory_version="",
        **fields,
    ).to_json()


async def fill(bench: Bench, count: int = 24, *, judged: bool = True, **options: Any) -> None:
    """A memory of cases whose judge always said yes."""
    given = [
        {**word(number), **({"judgment": judgment(number, value=True)} if judged else {})}
        for number in range(count)
    ]
    await bench.remember(*given, **options)


async def judged(bench: Bench, number: int = 102, on: str = "t", **options: Any) -> dict[str, Any]:
    graph = bench.judge_graph(**{"decide": "evidence", **options})
    found: dict[str, Any] = (await bench.invoke(graph, case(number), on))["judgment"]
    return found


@pytest.fixture
def reopen(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forgets all that this process knows of memories."""
    return lambda: monkeypatch.setattr(view, "_views", WeakKeyDictionary())


async def test_the_neighbours_outvote_a_judge_that_is_often_wrong(bench: Bench) -> None:
    await fill(bench)
    judgment = await judged(bench)
    assert truth(102) is False
    assert judgment["value"] is False
    assert judgment["rationale"] == "The loopback judge finds nothing to say against it."
    evidence = judgment["evidence"]
    assert evidence["decided_by"] == "evidence"
    assert evidence["verdict"] is True
    assert evidence["estimate"] is False
    assert evidence["reason"].startswith("The evidence decides: on 24 cases")
    assert evidence["verdict_error"] == 0.5
    assert evidence["evidence_error"] == 0.0
    assert evidence["weights"].keys() == {"judge", "neighbours"}
    nearest = evidence["neighbours"][0]
    assert nearest["value"] is False
    assert nearest["similarity"] > evidence["neighbours"][-1]["similarity"]
    assert judgment["confidence_source"] == "evidence"
    assert judgment["confidence"] == pytest.approx(evidence["probabilities"]["false"], abs=0.3)
    assert judgment["calibrated_on"] == 24
    read = Judgment.model_validate(json.loads(json.dumps(judgment)))
    assert read.verdict is True
    assert (await judged(bench, 100))["value"] is True


async def test_by_the_verdict_nothing_of_it_is_done(bench: Bench) -> None:
    await fill(bench)
    bench.server.embeddings.clear()
    judgment = await judged(bench, decide="verdict", k=0)
    assert judgment["value"] is True
    assert judgment["evidence"] is None
    assert judgment["confidence"] is None
    assert bench.server.embeddings == []


@pytest.mark.parametrize("options", [{"k": 0}, {"use_episodes": False}])
async def test_without_examples_in_the_prompt_the_neighbours_still_vote(
    bench: Bench, options: dict[str, Any]
) -> None:
    await fill(bench)
    bench.server.embeddings.clear()
    judgment = await judged(bench, **options)
    assert judgment["value"] is False
    assert judgment["evidence"]["decided_by"] == "evidence"
    assert judgment["episode_ids"] == []
    [asked] = verdicts(bench)
    assert earlier(asked) == []
    [embedded] = bench.server.embeddings
    assert len(embedded.texts) == 1


async def test_a_run_may_set_k_to_nought(bench: Bench) -> None:
    await fill(bench)
    graph = bench.judge_graph(decide="evidence")
    context = MemAlignContext(k=0)
    found = await bench.invoke(graph, case(102), context=context)
    assert found["judgment"]["value"] is False
    assert found["judgment"]["episode_ids"] == []


async def test_an_empty_memory(bench: Bench) -> None:
    judgment = await judged(bench)
    assert judgment["value"] is True
    evidence = judgment["evidence"]
    assert evidence["decided_by"] == "verdict"
    assert evidence["reason"].startswith("The verdict decides: memory has 0 cases")
    assert evidence["neighbours"] == []
    assert judgment["warnings"] == []
    assert bench.server.embeddings == []


async def test_a_memory_without_the_judges_verdicts_decides_by_the_experts_values(
    bench: Bench,
) -> None:
    await fill(bench, judged=False)
    judgment = await judged(bench)
    assert judgment["value"] is False
    evidence = judgment["evidence"]
    assert evidence["decided_by"] == "evidence"
    assert (evidence["verdict"], evidence["estimate"]) == (True, False)
    assert "and one value for all 0.5" in evidence["reason"]
    assert (evidence["verdict_error"], evidence["evidence_error"]) == (None, 0.0)
    assert evidence["weights"] == {"neighbours": 1.0}
    assert len(evidence["neighbours"]) == 10
    assert judgment["confidence"] > 0.5


async def test_values_that_no_neighbour_tells_leave_the_verdict(bench: Bench) -> None:
    given = [word(number, value=number // 4 % 2 == 0) for number in range(24)]
    await bench.remember(*given)
    judgment = await judged(bench)
    assert judgment["value"] is True
    assert judgment["evidence"]["decided_by"] == "verdict"
    assert judgment["evidence"]["reason"].startswith("The verdict decides: on 24 cases")


async def test_nine_cases_are_too_few(bench: Bench) -> None:
    await fill(bench, 9, judged=False)
    evidence = (await judged(bench))["evidence"]
    assert evidence["reason"].startswith("The verdict decides: memory has 9 cases with an expert's")
    assert (evidence["estimate"], len(evidence["neighbours"])) == (None, 9)


async def test_words_without_values_do_not_vote(bench: Bench) -> None:
    await bench.remember(*words(5, value=None, rationale="Too cold, it must say sorry."))
    judgment = await judged(bench)
    assert judgment["evidence"]["neighbours"] == []
    assert judgment["episode_ids"]


@pytest.mark.parametrize("k", [0, 5])
async def test_dead_embeddings(bench: Bench, k: int) -> None:
    await fill(bench)
    faults = [error(400, "The embeddings are dead.")] * 9
    bench.server.script_embeddings(*faults)
    judgment = await judged(bench, k=k, on_embedding_error="guidelines")
    assert judgment["value"] is True
    evidence = judgment["evidence"]
    assert evidence["decided_by"] == "verdict"
    assert "the case has no embedding" in evidence["reason"]
    assert evidence["neighbours"] == []
    assert evidence["cases"] == 24
    assert "The embeddings are dead" in judgment["warnings"][0]
    with pytest.raises(EmbeddingError, match="The embeddings are dead"):
        await judged(bench, k=k, on="u")


@pytest.mark.parametrize("decide", ["evidence", "verdict"])
async def test_dead_embeddings_of_a_memory_that_was_embedded_otherwise(
    bench: Bench, decide: str, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(bench)
    bench.server.responder = Judge()
    other = bench.server.embedder(model="text-embedding-3-large", max_retries=0)
    bench.server.script_embeddings(*[error(400, "The embeddings are dead.")] * 9)
    judgment = await judged(
        bench,
        embeddings=other,
        on_embedding_error="guidelines",
        decide=decide,
        confidence=True,
        k=5 if decide == "evidence" else 0,
    )
    assert judgment["value"] is True
    assert judgment["confidence"] == pytest.approx(0.7)
    assert judgment["calibrated_on"] is None
    assert "cases without vectors do not count" in caplog.text
    if decide == "evidence":
        assert judgment["evidence"]["cases"] == 0
        assert "The embeddings are dead" in judgment["warnings"][0]


async def test_another_embedder_embeds_the_memory_anew(bench: Bench) -> None:
    await fill(bench)
    other = bench.server.embedder(model="text-embedding-3-large", dimensions=32)
    judgment = await judged(bench, embeddings=other)
    assert judgment["value"] is False
    assert judgment["evidence"]["cases"] == 24


async def test_what_is_reviewed_is_weighed_the_next_time(bench: Bench) -> None:
    bench.server.responder = Judge(belief=lambda number: 0.9 if truth(number) else 0.6)
    graph = bench.review_graph(confidence=True, decide="evidence", k=0)
    for number in range(16):
        on = f"t{number}"
        asked = await bench.invoke(graph, case(number), on)
        assert "__interrupt__" in asked
        done = await bench.resume(graph, {"value": truth(number), "author": "ann"}, on)
        assert done["feedback"]["value"] is truth(number)
        assert done["judgment"]["evidence"]["cases"] == number
    for episode in await bench.episodes():
        kept = episode.judgment
        assert kept is not None
        assert kept.verdict is True
        assert kept.probabilities is not None
        assert kept.probabilities["true"] == pytest.approx(
            0.9 if truth(int(str(episode.example.inputs).split()[1][:-1])) else 0.6
        )
        assert kept.confidence is not None
        assert kept.confidence_source in ("logprobs", "evidence")
    found = (await bench.invoke(graph, case(102), "new"))["judgment"]
    assert found["evidence"]["cases"] == 16
    assert found["evidence"]["decided_by"] == "evidence"
    assert "judge" in found["evidence"]["weights"]
    assert found["value"] is False


async def test_a_case_that_memory_holds_has_its_own_vote(bench: Bench) -> None:
    await fill(bench)
    judgment = await judged(bench, 2)
    nearest = judgment["evidence"]["neighbours"][0]
    assert nearest["similarity"] == pytest.approx(1)
    assert nearest["value"] is False
    assert judgment["value"] is False
    assert nearest["episode_ids"][0] in judgment["episode_ids"]


async def test_a_verdict_that_knew_the_experts_word_is_not_weighed(bench: Bench) -> None:
    await fill(bench, judged=False)
    graph = bench.review_graph(decide="evidence")
    for number in range(12):
        on = f"t{number}"
        await bench.invoke(graph, case(number), on)
        done = await bench.resume(graph, {"value": truth(number), "author": "bob"}, on)
        assert done["judgment"]["episode_ids"]
    judgment = await judged(bench)
    assert judgment["evidence"]["verdict_error"] is None
    assert "and one value for all" in judgment["evidence"]["reason"]


async def test_judgments_from_before_still_count(bench: Bench, reopen: Callable[[], None]) -> None:
    await fill(bench)
    namespace = ("memalign", CRITERION.name, "episodes")
    search = [SearchOp(namespace, limit=1000)]
    [items] = await bench.store.abatch(search) if bench.awaits else bench.store.batch(search)
    puts: list[Any] = []
    for item in items:  # type: ignore[union-attr]
        old = {**item.value}  # type: ignore[union-attr]
        old["judgment"] = {
            name: one for name, one in old["judgment"].items() if name not in NEW_FIELDS
        }
        puts.append(PutOp(namespace, item.key, old, index=False))  # type: ignore[union-attr]
    if bench.awaits:
        await bench.store.abatch(puts)
    else:
        bench.store.batch(puts)
    reopen()
    found = await judged(bench)
    assert found["evidence"]["cases"] == 24
    assert found["value"] is False
    episodes = await bench.episodes()
    assert all(one.judgment is not None and one.judgment.evidence is None for one in episodes)


async def test_what_is_forgotten_is_weighed_no_more(bench: Bench) -> None:
    await fill(bench)
    graph = bench.judge_graph(decide="evidence")
    before = (await bench.invoke(graph, case(102), "a"))["judgment"]
    extra = {**word(50, value=True, author="eve"), "judgment": judgment(50, value=True)}
    [added] = await bench.remember(extra)
    between = (await bench.invoke(graph, case(102), "b"))["judgment"]
    assert between["evidence"]["cases"] == 25
    memory = bench.memory()
    if bench.awaits:
        await memory.aforget(added.id)
    else:
        memory.forget(added.id)
    after = (await bench.invoke(graph, case(102), "c"))["judgment"]
    assert after["evidence"] == before["evidence"]
    assert after["evidence"] != between["evidence"]
    assert after["confidence"] == before["confidence"]


async def test_on_a_numeric_scale(bench: Bench) -> None:
    stars = Criterion(
        name="stars", instructions="How many?", scale=Numeric(minimum=1, maximum=5, integer=True)
    )
    given = [
        {
            **word(number, value=4 if truth(number) else 2),
            "judgment": judgment(number, 5, probabilities=None),
        }
        for number in range(24)
    ]
    await bench.remember(*given, criterion=stars)
    graph = bench.judge_graph(stars, decide="evidence")
    found = (await bench.invoke(graph, case(102)))["judgment"]
    assert found["value"] == 2
    assert type(found["value"]) is int
    assert found["evidence"]["vote"] == pytest.approx(2, abs=0.3)
    assert found["evidence"]["probabilities"] is None
    assert found["evidence"]["weights"].keys() == {"judge", "neighbours"}


async def test_numbers_of_which_some_were_measured(bench: Bench) -> None:
    stars = Criterion(
        name="stars", instructions="How many?", scale=Numeric(minimum=1, maximum=5, integer=True)
    )
    odds = {"1": 0.1, "2": 0.1, "3": 0.1, "4": 0.1, "5": 0.6}
    given = [
        {
            **word(number, value=5 if number % 5 else 4),
            "judgment": judgment(number, 5, probabilities=odds if number % 2 else None),
        }
        for number in range(50)
    ]
    await bench.remember(*given, criterion=stars)
    for confidence in (True, False):
        graph = bench.judge_graph(stars, decide="evidence", confidence=confidence)
        found = (await bench.invoke(graph, case(102), str(confidence)))["judgment"]
        assert found["value"] in (4, 5)
        assert found["confidence"] is not None


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"decide": "both"}, "decide: 'both'"),
        ({"decide": None}, "decide: None"),
        ({"decide": True}, "decide: True"),
        ({"confidence": "yes"}, "confidence: 'yes'"),
        ({"confidence": 1}, "confidence: 1"),
        ({"confidence": True, "samples": -1}, "samples: -1"),
        ({"confidence": True, "samples": 2.5}, "samples: 2.5"),
        ({"confidence": True, "samples": True}, "samples: True"),
        ({"confidence": True, "samples": "5"}, "samples: '5'"),
        ({"confidence": True, "samples": 51}, "samples: 51"),
        ({"samples": 5}, "samples: they measure the confidence: give confidence=True"),
    ],
)
async def test_what_can_not_be_used(bench: Bench, options: dict[str, Any], field: str) -> None:
    for create in (create_judge_graph, create_review_graph):
        with pytest.raises(InvalidInputError) as caught:
            create(CRITERION, **options)
        assert str(caught.value).startswith(field)
        assert str(caught.value).count("\n") == 0
    assert bench.server.chats == []


async def test_numpy_is_all_it_needs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] in ("sklearn", "scipy")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("sklearn", "scipy"):
        monkeypatch.setitem(sys.modules, name, None)
    bench.server.responder = Judge()
    await fill(bench)
    assert (await judged(bench, confidence=True))["value"] is False
    memory = bench.memory()
    if bench.awaits:
        trust = [await memory.atrust(), await memory.atrust(decide="evidence")]
    else:
        trust = [memory.trust(), memory.trust(decide="evidence")]
    assert [one.needed for one in trust] == [29, 38]


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    program = """
import sys
import memalign_graph
from memalign_graph import Criterion, create_judge_graph, create_review_graph
create_judge_graph(Criterion(name="a", instructions="b")).compile()
create_review_graph(Criterion(name="a", instructions="b")).compile()
import memalign_graph.nodes.judge
heavy = {"sklearn", "scipy", "numpy", "faiss"} & {one.partition(".")[0] for one in sys.modules}
print(sorted(heavy))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


async def test_the_alignment_graph_judges_cases_for_it(bench: Bench) -> None:
    bench.server.responder = Judge()
    learn = bench.compile(
        create_alignment_graph(
            CRITERION,
            model=bench.server.chat_model(),
            embeddings=bench.server.embedder(),
            judge_cases=True,
            distill=False,
            confidence=True,
        )
    )
    await bench.invoke(learn, {"feedback": words(24)})
    assert sum(map(asks_for_value, bench.server.chats)) == 24
    found = await judged(bench, confidence=True)
    assert found["evidence"]["cases"] == 24
    assert found["value"] is False
