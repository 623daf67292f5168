"""The table of model calls is what a server counts."""

from collections.abc import Callable
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from memalign_graph import JudgeMemory, create_judge_graph, create_review_graph
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.learning import record_questions
from tests.conftest import CRITERION
from tests.documents import table
from tests.integration_tests.evidence.checks_support import BRIEF, SORRY, Model
from tests.loopback import LoopbackServer

EPISODE = {"inputs": "My order never came.", "outputs": "Wait.", "value": True, "author": "ann"}
GUIDELINES = {f"Rule: {question}": question for question in (SORRY, BRIEF)}


def test_each_row_of_the_table_matches_the_counted_calls(server: LoopbackServer) -> None:
    model: Any = {"model": server.chat_model(), "embeddings": server.embedder()}
    store, checkpointer, case = InMemoryStore(), InMemorySaver(), iter(range(100))
    memory = JudgeMemory(store, CRITERION, embeddings=model["embeddings"])
    memory.remember(EPISODE)
    answers = Model({SORRY: 0.9, BRIEF: 0.9})
    server.responder = answers

    def count(call: Callable[[], Any]) -> tuple[int, int]:
        server.chats.clear()
        server.embeddings.clear()
        call()
        return len(server.chats), len(server.embeddings)

    def judging(**options: Any) -> tuple[int, int]:
        graph = create_judge_graph(CRITERION, **model, **options).compile(store=store)
        number = next(case)
        return count(lambda: graph.invoke({"inputs": f"Q{number}", "outputs": f"A{number}"}))

    def reviewing(reply: Any) -> tuple[int, int]:
        graph = create_review_graph(CRITERION, **model)
        compiled = graph.compile(store=store, checkpointer=checkpointer)
        number = next(case)
        thread: Any = {"configurable": {"thread_id": str(number)}}
        compiled.invoke({"inputs": f"Q{number}", "outputs": f"A{number}"}, thread)
        server.responder = server.judge
        return count(lambda: compiled.invoke(Command(resume=reply), thread))

    seen = {"a judgment": judging(), "a judgment with `confidence=True`": judging(confidence=True)}
    for text in GUIDELINES:
        memory.add_guideline(text)
    run_sync(record_questions(SYNC, memory.access, GUIDELINES))
    seen["a judgment with `checks=True` and n guidelines"] = judging(checks=True)
    answers.tells = False
    for _ in range(3):
        assert judging(checks=True) == (3, 1)
    seen["the same, if the model gives no log-probabilities"] = judging(checks=True)
    seen["an expert agrees"] = reviewing({"decisions": [{"type": "approve"}]})
    seen["an expert disagrees with a comment"] = reviewing({"value": False, "rationale": "Cold."})

    numbers = {"1 + n": 1 + len(GUIDELINES)}
    documented = {
        what: (numbers.get(chats) or int(chats), int(embedded))
        for what, chats, embedded in table("docs/how-it-works.md", "what happens")
    }
    assert seen == documented
