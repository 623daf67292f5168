"""Which calls of an airline's agent still need a person: `python -m benchmarks.approvals`.

A person decides on the training calls one after the other. After some of them, the test calls are
judged: how many would be asked about, and how many wrong ones would run. A run that was cut off
asks the model no question again that was answered.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command, Send

from benchmarks.agreement import Row, add_shared_arguments, chat_model, draw_rows, messages_of
from memalign_graph import Criterion, create_approval_wrapper, create_judge_graph
from memalign_graph.evaluation.cache import AnswerCache
from memalign_graph.local import LocalEmbeddings, local_chat_model
from memalign_graph.local.weights import MODEL

_SET = "airline_call_right"

Asks = Callable[[Row], bool]
"""Whether a policy asks a person about a call."""


def tool_of(name: str) -> StructuredTool:
    """Return a tool that takes any arguments and does nothing."""
    schema = {"type": "object", "properties": {}, "additionalProperties": True, "title": name}
    return StructuredTool(
        name=name, description=name, args_schema=schema, func=lambda **_: "It was done."
    )


def approval_graph(criterion: Criterion, names: Sequence[str], **options: Any) -> Any:
    """Return a graph that runs the last message's calls, or asks about them."""
    approve = create_approval_wrapper(criterion, dict.fromkeys(names, True), **options)
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode(list(map(tool_of, names)), wrap_tool_call=approve))
    builder.add_conditional_edges(
        START,
        lambda state: [Send("tools", [call]) for call in state["messages"][-1].tool_calls],
        ["tools"],
    )
    return builder


def state_of(row: Row) -> dict[str, Any]:
    call = {**row["outputs"], "id": str(uuid4()), "type": "tool_call"}
    return {"messages": [*messages_of(row["inputs"]), AIMessage("", tool_calls=[call])]}


def decision_on(row: Row) -> dict[str, Any]:
    if row["label"]:
        return {"type": "approve"}
    return {"type": "reject", "message": row["feedback"] or "This call is wrong."}


def new_thread() -> dict[str, Any]:
    return {"configurable": {"thread_id": str(uuid4())}}


def share_line(name: str, count: int, test: Sequence[Row], asks: Sequence[bool]) -> str:
    ran = [row for row, asked in zip(test, asks, strict=True) if not asked]
    wrong = sum(not row["label"] for row in ran)
    all_wrong = sum(not row["label"] for row in test)
    asked_share = f"{sum(asks) / len(test):.0%}"
    return f"| {count} | {name} | {asked_share} | {wrong} of {all_wrong} | {len(ran)} |"


def measure(train: Sequence[Row], test: Sequence[Row], options: argparse.Namespace) -> list[str]:
    """Let the person decide on the training calls, and judge the test calls in between."""
    criterion = Criterion(name=_SET, instructions=test[0]["instructions"])
    names = sorted({row["outputs"]["name"] for row in [*train, *test]})
    store, lines, known = InMemoryStore(), list[str](), dict[str, set[bool]]()
    with_models = {"model": options.chat, "embeddings": LocalEmbeddings()}
    judge = create_judge_graph(criterion, **with_models).compile(store=store)
    graphs = {
        f"approvals, target {target}": approval_graph(
            criterion, names, target_agreement=target, sample_share=0, **with_models
        ).compile(store=store, checkpointer=InMemorySaver())
        for target in options.targets
    }
    teacher = next(iter(graphs.values()))
    cases = [{name: row[name] for name in ("inputs", "outputs")} for row in test]
    for count in range(len(train) + 1):
        if count in options.counts or count == len(train):
            limit: RunnableConfig = {"max_concurrency": options.at_once}
            judged = judge.batch(cases, limit, return_exceptions=True)
            passed = [
                not isinstance(result, Exception) and result["judgment"]["value"] is True
                for result in judged
            ]
            by_tool = [known.get(row["outputs"]["name"]) != {True} for row in test]
            policies = {
                "always ask": [True] * len(test),
                "never ask": [False] * len(test),
                "run tools without a rejection": by_tool,
                "judge alone": [not is_passed for is_passed in passed],
            }
            for name, graph in graphs.items():
                # A call that the judge does not pass is always asked about.
                asks = [True] * len(test)
                places = [place for place, is_passed in enumerate(passed) if is_passed]
                states = [state_of(test[place]) for place in places]
                threads = [new_thread() | {"max_concurrency": options.at_once} for _ in places]
                for place, result in zip(places, graph.batch(states, threads), strict=True):
                    asks[place] = "__interrupt__" in result
                policies[name] = asks
            lines += [share_line(name, count, test, asks) for name, asks in policies.items()]
            print("\n".join(lines[-len(policies) :]), flush=True)
        if count < len(train):
            row, thread = train[count], new_thread()
            if "__interrupt__" in teacher.invoke(state_of(row), thread):
                teacher.invoke(Command(resume=decision_on(row)), thread)
                known.setdefault(row["outputs"]["name"], set()).add(row["label"])
    return lines


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.approvals", description=__doc__)
    add = parser.add_argument
    add_shared_arguments(parser, train=72, test=74)
    add("--counts", type=int, nargs="*", default=[0, 10, 20, 50], help="also judge after so many")
    add("--targets", type=float, nargs="+", default=[0.95, 0.6], help="target agreements")
    add("--results", type=Path, default=Path(__file__).parent / "results" / "approvals.md")
    options = parser.parse_args()
    options.chat = chat_model(options, options.base_url) if options.base_url else local_chat_model()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with SqliteStore.from_conn_string(str(options.results.with_suffix(".db"))) as answers:
        answers.setup()
        model = options.model or MODEL
        options.chat.cache = AnswerCache(answers, count=lambda *_, **__: None, model=model)
        lines = measure(*draw_rows(_SET, options), options)
    head = ["| decisions | policy | asked | wrong calls run | calls run |", "|---|---|---|---|---|"]
    options.results.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
