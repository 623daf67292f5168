"""OpenTelemetry events of judgments, and run metadata."""

from collections.abc import Iterator
from typing import Any

import pytest

from memalign_graph import Uncertain, tracing
from tests.conftest import CASE, CRITERION, EVERY_WAY, Bench

logs = pytest.importorskip("opentelemetry.sdk._logs")
export = pytest.importorskip("opentelemetry.sdk._logs.export")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The judgment events that an application's provider receives."""
    exporter = export.InMemoryLogRecordExporter()
    provider = logs.LoggerProvider()
    provider.add_log_record_processor(export.SimpleLogRecordProcessor(exporter))
    monkeypatch.setattr(tracing, "_event_logger", lambda: provider.get_logger("test"))
    yield lambda: [
        (item.log_record.event_name, dict(item.log_record.attributes))
        for item in exporter.get_finished_logs()
    ]
    provider.shutdown()


@EVERY_WAY("memory-sync", "memory-async")
async def test_each_judgment_is_one_event_with_its_review_status(bench: Bench, events: Any) -> None:
    judgment = (await bench.invoke(bench.judge_graph(), CASE))["judgment"]
    [(name, attributes)] = events()
    assert name == "gen_ai.evaluation.result"
    assert attributes == {
        "gen_ai.evaluation.name": CRITERION.name,
        "gen_ai.evaluation.score.label": "true",
        "gen_ai.evaluation.score.value": 1.0,
        "gen_ai.response.model": judgment["model"],
        "memalign.judgment_id": judgment["id"],
        "memalign.judge_key": judgment["judge_key"],
        "memalign.memory_version": judgment["memory_version"],
        "memalign.asked": False,
    }
    review = Uncertain(sample_share=0)
    await bench.invoke(bench.review_graph(review=review, confidence=True), CASE, "doubtful")
    await bench.invoke(bench.review_graph(), CASE, "always")
    graph = bench.review_graph(review=lambda judgment: not judgment.value)
    await bench.invoke(graph, CASE, "by a function")
    events_seen = [attributes for _, attributes in events()[1:]]
    assert [item.get("memalign.asked") for item in events_seen] == [True, True, None]


async def test_runs_that_judge_name_the_judge(bench: Bench) -> None:
    from langchain_core.callbacks import BaseCallbackHandler

    class Seen(BaseCallbackHandler):
        def __init__(self) -> None:
            self.metadata: list[dict[str, Any]] = []

        def on_chat_model_start(self, *_: Any, metadata: Any = None, **__: Any) -> None:
            self.metadata.append(metadata)

    seen = Seen()
    graph = bench.judge_graph(confidence=True)
    config: Any = {"callbacks": [seen], "configurable": {"thread_id": "t"}}
    result: dict[str, Any] = graph.invoke(CASE, config)
    purposes = {item["memalign_purpose"]: item["memalign_judge_key"] for item in seen.metadata}
    key = result["judgment"]["judge_key"]
    assert purposes == {"judge": key, "confidence": key}
