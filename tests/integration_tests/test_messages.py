"""Messages as inputs and outputs in every graph: judging, learning, recall, export."""

import json
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.store.memory import InMemoryStore

from memalign_graph import Example, JudgeMemory, create_alignment_graph, create_panel_graph
from memalign_graph.bulk import prepare_batch
from memalign_graph.evaluation import evaluate
from memalign_graph.settings import Judge
from tests.conftest import CRITERION, EVERY_WAY, Bench, judgings
from tests.integration_tests.gates.support import LENGTH, pending

CALL = {"name": "refund", "args": {"order": "A7"}, "id": "c1", "type": "tool_call"}
RUN: list[AnyMessage] = [
    AIMessage("", tool_calls=[CALL]),
    ToolMessage("Paid back: 89 EUR.", tool_call_id="c1"),
    AIMessage("Done.", id="m3"),
]
CASE: dict[str, Any] = {"inputs": [HumanMessage("Refund A7."), *RUN], "outputs": RUN}
STORED = Example(**CASE)
STEPS = '1. called refund(order="A7")\n   returned: Paid back: 89 EUR.\n'
REASON = "It must look the order up before it pays anything back."


@EVERY_WAY
async def test_run_of_messages_is_judged_reviewed_learned_and_retrieved(bench: Bench) -> None:
    graph = bench.review_graph()
    result = await bench.invoke(graph, CASE)
    assert STEPS in pending(result)["description"]
    resumed = await bench.resume(graph, {"value": False, "rationale": REASON})
    assert resumed["judgment"]["example_id"] == STORED.id
    [episode] = await bench.episodes()
    assert episode.example == STORED
    distilled = next(chat for chat in bench.server.chats if chat.schema_name != "judgment")
    assert STEPS in distilled.text
    await bench.invoke(graph, {"inputs": "Refund A8.", "outputs": RUN}, "other")
    requests = judgings(bench.server)[-1].text
    assert requests.count(STEPS) == 2
    assert REASON in requests
    # Exported, it is imported unchanged.
    moved = JudgeMemory(InMemoryStore(), CRITERION, embeddings=bench.server.embedder())
    exported = await bench.call(bench.memory(), "export_jsonl")
    await bench.call(moved, "import_jsonl", exported.splitlines())
    assert await bench.call(moved, "episodes") == [episode]


async def test_every_entry_point_accepts_runs(bench: Bench, tmp_path: Path) -> None:
    models = bench.models()
    panel = bench.compile(create_panel_graph([CRITERION, LENGTH], **models))
    assert set((await bench.invoke(panel, CASE))["judgments"]) == {"support_tone", "length"}
    judge = Judge(criterion=CRITERION, **models)
    batch = tmp_path / "batch.jsonl"
    prepare_batch(judge, [CASE], batch, store=bench.store)
    [*_, line] = batch.read_text(encoding="utf-8").splitlines()
    assert STEPS in json.loads(line)["body"]["messages"][-1]["content"]
    feedback = [{**CASE, "value": False, "rationale": REASON, "author": "ann"}]
    feedback += [{"inputs": f"Q{n}", "outputs": RUN, "value": True} for n in range(4)]
    align = bench.compile(create_alignment_graph(CRITERION, **models))
    report = (await bench.invoke(align, {"feedback": feedback}, "align"))["report"]
    assert report["feedback"]["new"] == 5
    assert all(STEPS in chat.text for chat in judgings(bench.server))
    measured = evaluate(CRITERION, feedback, folds=2, **models)
    assert len(measured.cases) == 5
