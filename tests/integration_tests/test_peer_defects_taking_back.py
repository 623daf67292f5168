"""What was found broken in another implementation when feedback is taken back."""

from typing import Any

from tests.conftest import Bench, judgings
from tests.integration_tests.alignment_model import Model, each_its_words
from tests.integration_tests.alignment_support import align, alignment, record, said, sources
from tests.unit_tests.memory.purging import everything_in, left_in


async def judged(bench: Bench, number: int, on: str) -> str:
    """What the judge of a case is sent."""
    given = {name: record(number)[name] for name in ("inputs", "outputs")}
    await bench.invoke(bench.judge_graph(), given, on)
    return judgings(bench.server)[-1].text


async def test_edited_feedback_leaves_no_old_rule(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    await align(bench, [said(1, "On #a always say sorry.")])
    edited = said(1, "On #b always thank them.", given_at=record(9)["given_at"])
    await align(bench, [edited])
    assert list(sources(await bench.guidelines())) == ["On #b always thank them."]
    assert "say sorry" not in await judged(bench, 5, "j")


async def test_deletion_needs_no_trace(bench: Bench) -> None:
    """Feedback is forgotten by what it is, with its rule; nobody has to have kept its thread."""
    bench.server.responder = Model(distil=each_its_words)
    given: list[Any] = [
        said(1, "On #a say sorry.", id="trace-1"),
        said(2, "On #b thank them.", author="bob"),
        said(3, "On #c be brief."),
    ]
    await align(bench, given)
    memory = bench.memory()
    memory.forget(feedback_ids="trace-1")
    assert "On #a say sorry." not in sources(await bench.guidelines())
    memory.forget(author="bob")
    assert sources(await bench.guidelines()) == {"On #c be brief.": 1}
    memory.forget(where=lambda one: "brief" in (one.rationale or ""))
    assert await bench.guidelines() == []


async def test_no_cache_keeps_deleted_text(bench: Bench) -> None:
    planted = "xyzzy-4711"
    bench.server.responder = Model(distil=each_its_words)
    graph = alignment(bench)
    given = [
        record(1, outputs=f"A reply with {planted}.", rationale=f"On #a never say {planted}."),
        said(2, "On #b thank them."),
    ]
    await align(bench, given, graph)
    assert planted in await judged(bench, 3, "j")
    [episode] = [one for one in await bench.episodes() if planted in str(one.example.outputs)]
    bench.memory().forget(episode.id, purge=True, checkpointer=bench.saver)
    last = await judged(bench, 3, "k")
    assert planted not in last
    assert "thank them" in last
    assert left_in(everything_in(bench.store), planted) == []
    assert planted not in str(await bench.state(graph))
