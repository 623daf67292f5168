"""Print prompts before and after feedback: `python -m tests.show_prompts`."""

import sys
from collections.abc import Iterator

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from memalign_graph import create_review_graph
from tests.conftest import CASE, COLD, CRITERION, OTHER, distillings, judgings, thread
from tests.loopback import ChatRequest, LoopbackServer


def received(server: LoopbackServer) -> dict[str, ChatRequest]:
    """Judge, give feedback, and judge two other cases; returns the requests by title."""
    builder = create_review_graph(
        CRITERION, model=server.chat_model(), embeddings=server.embedder()
    )
    graph = builder.compile(store=InMemoryStore(), checkpointer=InMemorySaver())
    graph.invoke(CASE, thread("a"))
    graph.invoke(Command(resume=COLD), thread("a"))
    graph.invoke(OTHER, thread("b"))
    graph.invoke({**OTHER, "inputs": "Where is my bill?"}, thread("c"))
    before, after, another = judgings(server)
    return {
        "The judge, before feedback": before,
        "The distiller": distillings(server)[0],
        "The judge on another case, after feedback": after,
        "The judge on a third case, after feedback": another,
    }


def lines(requests: dict[str, ChatRequest]) -> Iterator[str]:
    for title, request in requests.items():
        yield f"{'=' * 20} {title} {'=' * 20}"
        for message in request.messages:
            yield f"--- {message['role']} ---\n{message['content']}\n"
    _, _, after, another = requests.values()
    same = after.messages[0] == another.messages[0]
    size = len(after.messages[0]["content"].encode())
    yield f"The first part of the last two is byte-identical: {same} ({size} bytes)."


def main() -> None:
    """Print the prompts that the loopback model received."""
    with LoopbackServer() as server:
        sys.stdout.write("\n".join(lines(received(server))) + "\n")


if __name__ == "__main__":
    main()
