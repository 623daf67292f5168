"""`memalign demo`: judge cases, learn from experts' feedback on others, and judge again."""

import asyncio
import json
import random
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from memalign_graph.cli.files import check_database
from memalign_graph.cli.terminal import Terminal, clean, key_value_table, pluralize, table

if TYPE_CHECKING:
    from memalign_graph.scales import Scale
    from memalign_graph.types import Guideline

_OPTIONS: dict[str, Any] = {"k": 2, "checks": True}
_SHORT = {"y": "yes", "n": "no"}
_COMMANDS = ("skip", "s", "quit", "q")
_WHEN = ("before", "after")
_NEXT = "\nOptions: --interactive (you are the expert), --sql (judge SQL), --fresh (start over)."


def demo(
    *,
    sql: Annotated[bool, typer.Option("--sql")] = False,
    interactive: Annotated[bool, typer.Option("--interactive")] = False,
    fresh: Annotated[bool, typer.Option("--fresh")] = False,
    memory: Annotated[Path, typer.Option(dir_okay=False)] = Path(".memalign", "demo.sqlite"),
    terminal: Terminal,
) -> int:
    """Judge cases, learn from experts' feedback on others, and judge the same cases again.

    Options:
        sql: Judge SQL, not exam answers.
        interactive: Give the feedback yourself.
        fresh: Forget earlier runs.
        memory: SQLite file of the memory.
    """
    from langgraph.store.memory import InMemoryStore

    from memalign_graph.graphs import create_alignment_graph, create_judge_graph
    from memalign_graph.local import open_local_store
    from memalign_graph.memory.facts import EMPTY_VERSION
    from memalign_graph.memory.judge_memory import JudgeMemory
    from memalign_graph.models import models_from_environment
    from memalign_graph.types import Criterion

    check_database(memory)
    path = resources.files(__package__).joinpath("cases", "sql.json" if sql else "exam.json")
    scenario = json.loads(path.read_text("utf-8"))
    criterion = Criterion.model_validate(scenario["criterion"])
    model, embeddings = models_from_environment()
    options = {"model": model, "embeddings": embeddings, **_OPTIONS}
    terminal.note(f"{scenario['title']}: {criterion.instructions} {scenario['source']}")
    terminal.note(f"chat model {model}, embeddings {embeddings}, memory in {memory}")
    rows = [{**case, "expert": case["expert"]["value"]} for case in scenario["unseen"]]

    async def judge_all(when: str, store: Any) -> None:
        judge = create_judge_graph(criterion, **options).compile(store=store)
        for number, row in enumerate(rows, 1):
            value = (await judge.ainvoke(_example(row)))["judgment"]["value"]
            row[when] = round(value, 2) if isinstance(value, float) else value
            terminal.note(f"{when} learning, case {number} of {len(rows)}: {row[when]}")

    asyncio.run(judge_all("before", InMemoryStore()))
    with open_local_store(memory) as store:
        learned = JudgeMemory(store, criterion, embeddings=embeddings)
        if fresh:  # the file may hold other memories
            learned.rollback(EMPTY_VERSION)
        known = {item.feedback_id for item in learned.episodes() if item.status == "distilled"}
        new = [case for case in scenario["taught"] if case["id"] not in known]
        scripted = ((case, case["expert"]) for case in new)
        answered = [*(_ask(new, criterion.scale, terminal) if interactive else scripted)]
        feedback = [{**_example(case), **reply, "id": case["id"]} for case, reply in answered]
        for case, reply in answered:
            terminal.note(f"the expert on {case['id']}: {reply['value']}: {reply['rationale']}")
        if feedback:
            terminal.note(f"learning from {pluralize(len(feedback), 'case')}")
            align = create_alignment_graph(criterion, **options).compile(store=store)
            asyncio.run(align.ainvoke({"feedback": feedback}))
        elif not new:
            terminal.note("an earlier run learned from all cases: --fresh starts over")
        asyncio.run(judge_all("after", store))
        result = {
            "cases": rows,
            "guidelines": learned.guidelines(),
            "episodes": {item.id: item.feedback_id or item.id for item in learned.episodes()},
            "conclusion": conclusion(criterion.scale, rows),
        }
    terminal.result(result, shown=render_result(criterion.scale, result))
    return 0


def _example(case: dict[str, Any]) -> dict[str, Any]:
    return {name: case[name] for name in ("inputs", "outputs")}


def _ask(
    cases: list[dict[str, Any]], scale: "Scale", terminal: Terminal
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Ask for a value and a comment on each case, until `quit`; skipped cases are left out."""
    question = f"What should it be: {scale.describe()} Enter for a comment alone; skip, quit:"
    for case in cases:
        terminal.show(key_value_table({"case": case["id"], **_example(case)}))
        answer, value = terminal.ask(question), None
        while answer and answer.lower() not in _COMMANDS and value is None:
            try:
                value = scale.validate_value(_SHORT.get(answer, answer))
            except ValueError as error:
                terminal.warn(str(error))
                answer = terminal.ask(question)
        if answer is None or answer.lower() in ("quit", "q"):
            return
        if value is None and answer:
            continue
        comment = terminal.ask("Why, in your own words; Enter for none:") or None
        if answer or comment:
            yield case, {"value": value, "rationale": comment}


def render_result(scale: "Scale", result: Mapping[str, Any]) -> list[Table | Text]:
    picture = Table("", *_WHEN, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    short = []
    for number, row in enumerate(result["cases"], 1):
        begins = textwrap.shorten(row["outputs"], 50, placeholder=" ...")
        short.append({**row, "id": None, "case": f"{number}  {begins}"})
        picture.add_row(f"{number}", *(_bar(scale, _distance(scale, row, when)) for when in _WHEN))
    learned = [clean(_guideline_text(item, result["episodes"])) for item in result["guidelines"]]
    return [
        table(short),
        Text("\n".join(["\nWhat it learned:", *(learned or ["- nothing yet"])])),
        Text("\nHow far it was from the expert, case by case:"),
        picture,
        Text(f"\n{result['conclusion']}\n{_NEXT}"),
    ]


def conclusion(scale: "Scale", rows: Sequence[Mapping[str, Any]]) -> str:
    """Say in a sentence how far the judge was from the experts, before and after."""
    was, now = ([_distance(scale, row, when) for row in rows] for when in _WHEN)
    if scale.type != "numeric":
        right = f"{was.count(0)} of {len(rows)} unseen cases before it learned"
        return f"The judge was right on {right}, and on {now.count(0)} after."
    nearer = [before - after for before, after in zip(was, now, strict=True)]
    low, high = bootstrap_interval(nearer)
    moved = "nearer" if fmean(nearer) >= 0 else "farther"
    return (
        f"On {len(rows)} unseen cases the judge was {fmean(was):.2f} away from the experts before "
        f"it learned, and {fmean(now):.2f} after: {moved} by {abs(fmean(nearer)):.2f} (90 % "
        f"interval of the gain {low:.2f} to {high:.2f}"
        f"{', so it may be chance' if low <= 0 <= high else ''})."
    )


def bootstrap_interval(changes: Sequence[float]) -> tuple[float, float]:
    """Return the 90 % interval of the mean of paired changes, by a bootstrap."""
    rng = random.Random(0)  # noqa: S311 - no secret
    means = sorted(fmean(rng.choices(changes, k=len(changes))) for _ in range(2_000))
    return means[100], means[-101]


def _distance(scale: "Scale", row: Mapping[str, Any], when: str) -> float:
    """Return the distance to the expert's value; 1 is the whole scale, or a wrong value."""
    if scale.type == "numeric":
        return float(abs(row[when] - row["expert"]) / (scale.maximum - scale.minimum))
    return float(row[when] != row["expert"])


def _bar(scale: "Scale", distance: float) -> Text:
    block = "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    label = f"{distance:.2f}" if scale.type == "numeric" else ("wrong" if distance else "right")
    color = "red" if 2 * distance > 1 else "green"
    return Text(f"{block * round(20 * distance):20} {label}", style=color)


def _guideline_text(guideline: "Guideline", cases: Mapping[str, str]) -> str:
    measured, worth = "not measured yet", guideline.worth
    if worth is not None:
        share = f"{100 * worth.auc:.0f} % of the time, on {worth.cases} cases"
        measured = f"tells the better of two answers {share}"
    unused = "; not used" if guideline.status == "unproven" else ""
    sources = ", ".join(cases[episode_id] for episode_id in guideline.episode_ids)
    return f"- {guideline.text}\n  from {sources or 'hand'}; {measured}{unused}"
