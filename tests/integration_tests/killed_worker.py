"""A review in a process of its own, which a test kills: see `test_killed`."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import StateGraph
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from langgraph.types import Command

from memalign_graph import Criterion, create_review_graph

CONFIG: Any = {"configurable": {"thread_id": "t"}}


def builder(criterion: str) -> StateGraph[Any, Any, Any, Any]:
    """Build the graph; its models are at OPENAI_BASE_URL."""
    return create_review_graph(
        Criterion.model_validate_json(criterion),
        model=ChatOpenAI(model="gpt-4.1-mini"),
        embeddings=OpenAIEmbeddings(check_embedding_ctx_length=False),
    )


def say(given: dict[str, Any]) -> None:
    """Tell the test what came of a step."""
    sys.stdout.write(json.dumps(given["judgment"]) + "\n")
    sys.stdout.flush()


def review(folder: Path, criterion: str, case: Any, reply: Any) -> None:
    """Judge a case and take the reply, with blocking calls."""
    with (
        SqliteStore.from_conn_string(str(folder / "store.db")) as store,
        SqliteSaver.from_conn_string(str(folder / "threads.db")) as saver,
    ):
        store.setup()
        graph = builder(criterion).compile(store=store, checkpointer=saver)
        say(graph.invoke(case, CONFIG))
        if reply is not None:
            say(graph.invoke(Command(resume=reply), CONFIG))
        time.sleep(600)


async def areview(folder: Path, criterion: str, case: Any, reply: Any) -> None:
    """Judge a case and take the reply, with awaited calls."""
    async with (
        AsyncSqliteStore.from_conn_string(str(folder / "store.db")) as store,
        AsyncSqliteSaver.from_conn_string(str(folder / "threads.db")) as saver,
    ):
        await store.setup()
        graph = builder(criterion).compile(store=store, checkpointer=saver)
        say(await graph.ainvoke(case, CONFIG))
        if reply is not None:
            say(await graph.ainvoke(Command(resume=reply), CONFIG))
        await asyncio.sleep(600)


def main(way: str, folder: str, criterion: str, case: str, reply: str) -> None:
    """Review, and wait to be killed."""
    given = (Path(folder), criterion, json.loads(case), json.loads(reply))
    if way == "sync":
        review(*given)
    else:
        asyncio.run(areview(*given))


if __name__ == "__main__":
    main(*sys.argv[1:])
