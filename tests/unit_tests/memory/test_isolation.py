"""Memories in one store are isolated in recall, exports, versions and indexes."""

import json
from typing import Any

import pytest

from memalign_graph import Criterion, JudgeMemory
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.judgments import read_review_log
from tests.builders import keep_reviewed
from tests.unit_tests.memory.support import Bench, comment

KINDS = ("facts", "words", "vectors", "drafts", "head", "judgments", "reviews")
"""How the namespaces of a memory's items are labelled, and criteria may be called."""

PLACES: list[tuple[tuple[str, ...], str]] = [
    (("memalign",), "tone"),
    (("memalign", "tone"), "tone"),
    (("memalign", "tone", "tone"), "tone"),
    (("memalign",), "tone2"),
    (("memalign",), "Tone"),
    (("memalign2",), "tone"),
    (("memalign", "*"), "tone"),
    (("*",), "tone"),
    (("memalig_",), "tone"),
    (("memalign", "%"), "tone"),
    *((("memalign",), name) for name in ("t%", "a*b", "[x]", "Straße", 'it\'s "so"', "a/b")),
    *((("memalign", "tone"), kind) for kind in KINDS),
    *((("memalign", "tone", "facts"), kind) for kind in KINDS),
    *((("memalign",), kind) for kind in KINDS),
    *((("memalign", kind), "tone") for kind in KINDS),
    *((("memalign", "tone", "vectors"), kind) for kind in KINDS),
    *((("memalign", kind), kind) for kind in ("words", "vectors")),
]


def opened(bench: Bench) -> dict[str, JudgeMemory]:
    access = bench.memory(Criterion(name="tone", instructions="?")).access
    below = access.layout.vectors(access.embedder.id)
    places = [(below, "tone"), *PLACES, (below, "vectors")]
    return {
        f"case {number}": bench.memory(Criterion(name=name, instructions="?"), namespace=namespace)
        for number, (namespace, name) in enumerate(places)
    }


@pytest.mark.every_way("memory-sync", "sqlite-sync")
async def test_no_memory_sees_another(bench: Bench, reopen: Any) -> None:
    memories = opened(bench)
    assert len(memories) > 20
    for name, memory in memories.items():
        await bench.remember(comment(name, name), memory=memory)
        await bench.do("add_guideline", f"Rule of {name}.", memory=memory)
    versions = {await bench.do("version", memory=memory) for memory in memories.values()}
    assert len(versions) == len(memories)
    for again in range(2):
        for name, memory in memories.items():
            assert await bench.recall("anything", k=50, memory=memory) == [name]
            assert [e.rationale for e in await bench.do("episodes", memory=memory)] == [name]
            [guideline] = await bench.do("guidelines", memory=memory)
            assert guideline.text == f"Rule of {name}."
            text = await bench.do("export_jsonl", memory=memory)
            assert [json.loads(line)["type"] for line in text.splitlines()] == [
                "memory", "guideline", "episode", "vector",
            ]  # fmt: skip
            await bench.do("import_jsonl", text, memory=memory)
            assert len(await bench.do("history", memory=memory)) == 2
        if not again:
            reopen()


@pytest.mark.every_way("memory-sync", "sqlite-sync")
async def test_forget_purge_and_rollback_affect_one_memory(bench: Bench) -> None:
    memories = opened(bench)
    logs: dict[str, list[str]] = {}
    for name, memory in memories.items():
        [episode] = await bench.remember(comment("the same everywhere", name), memory=memory)
        logs[name] = [keep_reviewed(memory.access, episode.example, "sample").id]
    versions = {name: await bench.do("version", memory=memory) for name, memory in memories.items()}
    for number, (name, memory) in enumerate(memories.items()):
        if number % 2:
            await bench.do("forget", where=lambda _: True, purge=True, memory=memory)
            logs[name] = []
        else:
            await bench.do("rollback", "0" * 32, memory=memory)
        del versions[name]
        for retained, version in versions.items():
            assert await bench.do("version", memory=memories[retained]) == version
        # A label that a store reads as a wildcard is a label like others.
        for kept, ids in logs.items():
            log = run_sync(read_review_log(SYNC, memories[kept].access))
            assert [entry.judgment_id for entry in log] == ids
    bench.embedded()
    for memory in memories.values():
        assert await bench.do("episodes", memory=memory) == []
