"""Assorted tests of purges, lessons, evaluations and kept judgments."""

import gc
from datetime import timedelta
from functools import lru_cache
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import Boolean, Categorical, Criterion, Numeric
from memalign_graph.memory import judgments
from memalign_graph.memory.memory_state import MemoryState, build_state
from memalign_graph.review.forms import value_field
from memalign_graph.settings import Alignment
from tests.conftest import CASE, CRITERION, Bench

CANARIES = {"ann": "zqxann", "bob": "zqxbob", "cid": "zqxcid"}


async def test_purge_redacts_quoted_comments_and_loses_nothing_else(
    bench: Bench,
) -> None:
    """Each judgment quotes the cases of its prompt."""

    def quoting(chat: Any) -> Any:
        if chat.schema_name == "judgment":
            quoted = [canary for canary in CANARIES.values() if canary in chat.text]
            return {"rationale": f"As said: {' '.join(quoted)}", "value": True}
        return bench.server.judge(chat)

    bench.server.responder = quoting
    graph = bench.review_graph(decide="verdict")
    for number, (author, canary) in enumerate(CANARIES.items()):
        case = {"inputs": f"Question {number}?", "outputs": "Yes."}
        reply = {"value": False, "rationale": f"Too cold: {canary}.", "author": author}
        await bench.review(graph, reply, case, f"t{number}")
    open_judge = bench.judge_graph(
        keep_judgments=timedelta(days=1), k=0, decide="verdict", use_guidelines=False
    )
    apart = await bench.invoke(
        open_judge,
        {"inputs": "Something else?", "outputs": "Yes."},
        "apart",
    )
    for author, canary in CANARIES.items():
        authors = [episode.author for episode in await bench.episodes() if episode.author != author]
        bench.memory().forget(author=author, purge=True, checkpointer=bench.saver)
        stored = str([item.dict() for item in bench.store.search((), limit=10_000)])
        assert canary not in stored
        assert [episode.author for episode in await bench.episodes()] == authors
        assert all(other in stored for name, other in CANARIES.items() if name in authors)
    stored = str([item.dict() for item in bench.store.search((), limit=10_000)])
    assert apart["judgment"]["id"] in stored


def cached_texts() -> set[str]:
    """All texts in the keys of this package's `lru_cache`s."""
    parts: list[Any] = [
        part
        for part in gc.get_objects()
        if type(part) is type(lru_cache(str)) and part.__module__.startswith("memalign_graph.")
    ]
    texts: set[str] = set()
    while parts:
        for part in gc.get_referents(parts.pop()):
            if isinstance(part, str):
                texts.add(part)
            elif isinstance(part, dict | list | tuple):
                parts.append(part)
    return texts


async def test_purged_guideline_is_in_no_cache_of_the_process(bench: Bench) -> None:
    reply = {"value": False, "rationale": "Too cold: zqxcache.", "author": "ann"}
    graph = bench.review_graph()
    await bench.review(graph, reply, {"inputs": "One?", "outputs": "Yes."}, "t1")
    assert any("zqxcache" in guideline.text for guideline in await bench.guidelines())
    await bench.review(graph, {"value": True}, {"inputs": "Two?", "outputs": "Yes."}, "t2")
    bench.memory().forget(author="ann", purge=True, checkpointer=bench.saver)
    assert not [text for text in cached_texts() if "zqxcache" in text]


def test_lessons_are_applied_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = bench.memory()
    for number in range(60):
        memory.remember({**CASE, "inputs": f"q{number}", "value": False, "rationale": "Cold."})
    for episode in memory.episodes()[:40]:
        memory.revise(episode.id, {"rationale": "Rude."})
    facts, feedback_records = memory.access.view.facts()
    calls = 0
    learn_anew = MemoryState._reapply_lessons

    def counted(self: Any) -> None:
        nonlocal calls
        calls += 1
        learn_anew(self)

    monkeypatch.setattr(MemoryState, "_reapply_lessons", counted)
    folded = build_state(facts, feedback_records, memory.access.embedder.id)
    assert folded.version == memory.version()
    assert calls <= 1


@pytest.mark.parametrize(
    ("scale", "keys"),
    [
        (Numeric(minimum=0, maximum=5, integer=True), "012345"),
        (Numeric(minimum=1, maximum=5, integer=True), "12345"),
        (Numeric(minimum=-2, maximum=2, integer=True), "012"),
        (Boolean(), "12"),
        (Categorical(choices=("a", "b", "c")), "123"),
    ],
)
def test_digit_key_selects_the_mark(scale: Any, keys: str) -> None:
    field = value_field("value", "Value", Criterion(name="c", instructions="?", scale=scale), {})
    assert "".join(option.key for option in field.options) == keys
    if isinstance(scale, Numeric):
        assert all(option.key in ("", option.value) for option in field.options)


async def test_evaluation_learns_with_the_settings_of_the_file(bench: Bench) -> None:
    from memalign_graph.evaluation.experiment import parse_options

    settings = {"learn_from": "labels", "guard": "replay", "batch_size": 7, "replay_cases": 3}
    _, ways = parse_options(CRITERION, {**settings, "judge_cases": True})
    aligned = ways["aligned"]
    assert isinstance(aligned, Alignment)
    assert {name: getattr(aligned, name) for name in settings} == settings
    assert aligned.judge_cases is True


async def test_removing_old_judgments_reads_a_bounded_number_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judgments, "_SWEEP_ITEMS", 5)
    options: Any = {"keep_judgments": timedelta(days=1), "decide": "verdict"}
    graph = bench.judge_graph(**options)
    memory = bench.memory()
    namespace = memory.access.layout.of("judgments")
    for number in range(12):
        await bench.invoke(graph, {"inputs": f"q{number}", "outputs": "a"}, f"t{number}")
    items = bench.store.search(namespace, limit=100)
    for item in items[:9]:
        value = {**item.value, "kept_until": "2020-01-01T00:00:00Z"}
        bench.store.put(namespace, item.key, value, index=False)
    collected: list[int] = []
    batch = InMemoryStore.batch

    def counted(self: InMemoryStore, ops: Any) -> Any:
        results = batch(self, ops)
        collected.extend(
            len(result) for result in results if isinstance(result, list) and len(result) > 1
        )
        return results

    monkeypatch.setattr(InMemoryStore, "batch", counted)
    for number in range(6):
        memory.access.view.swept_at = judgments.utc_now() - timedelta(days=1)
        await bench.invoke(graph, {"inputs": f"r{number}", "outputs": "a"}, f"r{number}")
    assert max(collected) <= 5
    remaining = bench.store.search(namespace, limit=100)
    assert not {item.key for item in items[:9]} & {item.key for item in remaining}
    assert {item.key for item in items[9:]} <= {item.key for item in remaining}
