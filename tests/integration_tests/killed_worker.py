"""A review in a process of its own, which a test kills: see `test_killed`."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command

from memalign_graph import Criterion, create_review_graph

CONFIG: Any = {"configurable": {"thread_id": "t"}}


def say(given: dict[str, Any]) -> None:
    """Tell the test what came of a step."""
    sys.stdout.write(json.dumps(given["judgment"]) + "\n")
    sys.stdout.flush()


def main(folder: str, criterion: str, case: str, reply: str) -> None:
    """Judge a case, take the reply, and wait to be killed; the models are at OPENAI_BASE_URL."""
    builder = create_review_graph(
        Criterion.model_validate_json(criterion),
        model=ChatOpenAI(model="gpt-4.1-mini"),
        embeddings=OpenAIEmbeddings(check_embedding_ctx_length=False),
    )
    with (
        SqliteStore.from_conn_string(str(Path(folder) / "store.db")) as store,
        SqliteSaver.from_conn_string(str(Path(folder) / "threads.db")) as saver,
    ):
        store.setup()
        graph = builder.compile(store=store, checkpointer=saver)
        say(graph.invoke(json.loads(case), CONFIG))
        if json.loads(reply) is not None:
            say(graph.invoke(Command(resume=json.loads(reply)), CONFIG))
        time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
