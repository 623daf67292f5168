"""`memalign demo`: judge, ask, learn, and judge again, on cases of its own (`cases/*.json`)."""

import json
from importlib import resources
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer

from memalign_graph.cli.files import check_database
from memalign_graph.cli.terminal import Terminal, count, listed

_CASES = ("sql", "saf")
_K = 2
"""How many similar cases the judge is shown: a small model on a CPU reads 30 tokens a second."""


def demo(
    *,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Answer the reviews yourself.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget earlier runs.")] = False,
    memory: Annotated[
        Path, typer.Option(dir_okay=False, help="The SQLite file of the memory.")
    ] = Path(".memalign", "demo.sqlite"),
    terminal: Terminal,
) -> int:
    """Judge cases, hear an expert, learn, and judge again."""
    from memalign_graph.local import open_local_checkpointer, open_local_store
    from memalign_graph.models import models_from_environment

    check_database(memory, "--memory")
    for suffix in ("", "-wal", "-shm", ".lock") if fresh else ():
        memory.with_name(memory.name + suffix).unlink(missing_ok=True)
    model, embeddings = models_from_environment()
    options = {"model": model, "embeddings": embeddings, "k": _K}
    terminal.note(f"chat model {model}, embeddings {embeddings}, memory in {memory}")
    with open_local_store(memory) as store, open_local_checkpointer(memory) as checkpointer:
        for name in _CASES:
            text = resources.files(__package__).joinpath("cases", f"{name}.json").read_text("utf-8")
            saver = {"store": store, "checkpointer": checkpointer}
            _run(json.loads(text), options, saver, terminal, interactive=interactive)
    terminal.note("run it again to start with what was learned, or with --fresh to start over")
    return 0


def _run(
    file: dict[str, Any],
    options: dict[str, Any],
    stores: dict[str, Any],
    terminal: Terminal,
    *,
    interactive: bool,
) -> None:
    from langgraph.types import Command

    from memalign_graph.graphs import create_judge_graph, create_review_graph
    from memalign_graph.memory.judge_memory import JudgeMemory
    from memalign_graph.types import Criterion

    criterion = Criterion.model_validate(file["criterion"])
    memory = JudgeMemory(stores["store"], criterion, embeddings=options["embeddings"])
    judge = create_judge_graph(criterion, **options).compile(**stores)
    review = create_review_graph(criterion, **options).compile(**stores)
    rows: list[dict[str, Any]] = []
    threads: list[Any] = []

    def judged(graph: Any, case: dict[str, Any]) -> Any:
        terminal.note(f"judging {case['id']}")
        threads.append({"configurable": {"thread_id": uuid4().hex}})
        example = {name: case[name] for name in ("inputs", "outputs")}
        return graph.invoke(example, threads[-1])["judgment"]["value"]

    terminal.note(f"{file['title']}: {criterion.instructions} {file['source']}")
    terminal.note(f"the memory holds {count(len(memory.guidelines()), 'guideline')}")
    for is_taught, cases in ((True, file["taught"]), (False, file["unseen"])):
        for case in cases:
            before = judged(review if is_taught else judge, case)
            row = {"case": case["id"], "expert": case["expert"]["value"], "before": before}
            rows.append({**row, "after": "taught" if is_taught else None})
    for case, thread in zip(file["taught"], threads, strict=False):
        reply = case["expert"]
        if interactive:
            terminal.show(listed({name: case[name] for name in ("inputs", "outputs")}))
            reply = terminal.ask_expert(criterion.scale)
        answer: Command[Any] = Command(
            resume={"type": "ignore"} if isinstance(reply, str) else reply
        )
        result = review.invoke(answer, thread)
        for change in result["learned"]["guidelines"] if result["learned"] else []:
            terminal.note(f"learned of {case['id']}: {change['text']}")
    for case, row in zip(file["unseen"], rows[len(file["taught"]) :], strict=True):
        row["after"] = judged(judge, case)
    terminal.result({criterion.name: rows})
