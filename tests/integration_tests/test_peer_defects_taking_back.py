"""What was found broken in another implementation when feedback is taken back."""

import json
from typing import Any

from langgraph.store.base import SearchOp

from tests.conftest import Bench, judgings
from tests.integration_tests.alignment_support import (
    Model,
    align,
    alignment,
    each_its_words,
    record,
    said,
    sources,
)


def case(number: int) -> dict[str, Any]:
    return {name: record(number)[name] for name in ("inputs", "outputs")}


async def do(bench: Bench, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the memory, or its async twin."""
    memory = bench.memory()
    if bench.awaits:
        return await getattr(memory, f"a{name}")(*args, **kwargs)
    return getattr(memory, name)(*args, **kwargs)


async def test_edited_feedback_leaves_no_old_rule(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    await align(bench, [said(1, "On #a always say sorry.")])
    edited = said(1, "On #b always thank them.", given_at=record(9)["given_at"])
    await align(bench, [edited])
    assert list(sources(await bench.guidelines())) == ["On #b always thank them."]
    await bench.invoke(bench.judge_graph(), case(5), "j")
    assert "say sorry" not in judgings(bench.server)[-1].text


async def test_deletion_needs_no_trace(bench: Bench) -> None:
    """Feedback is forgotten by what it is, with its rule; nobody has to have kept its thread."""
    bench.server.responder = Model(distil=each_its_words)
    given = [
        said(1, "On #a say sorry.", id="trace-1"),
        said(2, "On #b thank them.", author="bob"),
        said(3, "On #c be brief."),
    ]
    await align(bench, given)
    unknown = await do(bench, "forget", "no such episode")
    assert (unknown.episode_ids, unknown.unknown_ids) == ([], ["no such episode"])
    assert len(await bench.guidelines()) == 3
    await do(bench, "forget", feedback_ids="trace-1")
    assert "On #a say sorry." not in sources(await bench.guidelines())
    await do(bench, "forget", author="bob")
    assert sources(await bench.guidelines()) == {"On #c be brief.": 1}
    await do(bench, "forget", where=lambda one: "brief" in (one.rationale or ""))
    assert await bench.guidelines() == []


async def test_no_cache_keeps_deleted_text(bench: Bench) -> None:
    planted = "xyzzy-4711"
    bench.server.responder = Model(distil=each_its_words)
    judge = bench.judge_graph()
    graph = alignment(bench)
    given = [
        record(1, outputs=f"A reply with {planted}.", rationale=f"On #a never say {planted}."),
        said(2, "On #b thank them."),
    ]
    await align(bench, given, graph)
    await bench.invoke(judge, case(3), "j")
    assert planted in judgings(bench.server)[-1].text
    [episode] = [one for one in await bench.episodes() if planted in str(one.example.outputs)]
    await do(bench, "forget", episode.id, purge=True, checkpointer=bench.saver)
    await bench.invoke(judge, case(3), "k")
    last = judgings(bench.server)[-1].text
    assert planted not in last
    assert "thank them" in last
    [items] = (
        await bench.store.abatch([SearchOp((), limit=10_000)])
        if bench.awaits
        else bench.store.batch([SearchOp((), limit=10_000)])
    )
    assert isinstance(items, list)
    assert items
    assert planted not in json.dumps([item.value for item in items])  # type: ignore[union-attr]
    assert planted not in str(await bench.state(graph))
