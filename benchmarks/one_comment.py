"""What a judge makes of an expert's first comments: `python -m benchmarks.one_comment`.

A scenario has feedback of one expert, a case that breaks what the expert asks for, and a case that
keeps it. For each number of comments a new memory learns as many, in the order of the file, and
judges both cases: the first is to be False, the second True.
"""

import argparse
import ast
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import SecretStr

from benchmarks.plan import PEER_VENV, markdown_table, peer_verdicts, serving
from memalign_graph import Criterion, JudgeMemory, create_judge_graph, create_review_graph
from memalign_graph.errors import MemAlignError
from memalign_graph.local import LocalEmbeddings, local_chat_model, start_server
from memalign_graph.local.weights import MODEL

SCENARIOS = Path(__file__).parent / "data" / "one_comment.jsonl"
_RIGHT = {"breaks": False, "keeps": True}
_PEER_K = 5  # similar cases: the default of both sides

Scenario = dict[str, Any]
"""A line of the scenarios' file."""

Outcome = dict[str, Any]
"""Both values, the reason of the breaking case's, seconds a judgment, and what was learned."""

Side = Callable[[Scenario, int], Outcome]


def load_scenarios(path: Path = SCENARIOS, split: str = "all") -> list[Scenario]:
    """Read the scenarios of a split from a file."""
    scenarios: list[Scenario] = [
        {"name": f"scenario_{number}", "split": "none", **json.loads(line)}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    ]
    return [scenario for scenario in scenarios if split in ("all", scenario["split"])]


def embedded_settings() -> dict[str, Any]:
    """Return what makes a `ChatOpenAI` ask as the embedded model is asked, but for its address."""
    local = local_chat_model()
    names = ("temperature", "seed", "max_tokens", "metadata")
    settings = {name: getattr(local, name) for name in names}
    return {"model": local.model_name, "profile": local.profile, **settings}


def served_model(server: str, **settings: Any) -> ChatOpenAI:
    """Return a server's model; without settings it is asked as the embedded one."""
    settings = settings or embedded_settings()
    return ChatOpenAI(base_url=server, api_key=SecretStr("none"), timeout=1_800, **settings)


def upstream(base_url: str | None = None) -> list[str]:
    """Return the options of a server that passes chat on, by default to the embedded model's."""
    if base_url:
        return ["--upstream", base_url]
    endpoint = start_server()
    return ["--upstream", endpoint.base_url, "--key", endpoint.api_key]


def judge_scenario(scenario: Scenario, comments: int, **judge: Any) -> Outcome:
    """Teach a new memory the first comments, by an expert's replies, and judge both cases."""
    criterion = Criterion(name=scenario["name"], instructions=scenario["instructions"])
    store = InMemoryStore()
    review = create_review_graph(criterion, **judge).compile(InMemorySaver(), store=store)
    for number, feedback in enumerate(scenario["feedback"][:comments]):
        thread: RunnableConfig = {"configurable": {"thread_id": str(number)}}
        review.invoke({name: feedback[name] for name in ("inputs", "outputs")}, thread)
        reply = {"value": feedback["value"], "author": "ann"}
        if feedback["rationale"] is not None:
            reply["rationale"] = feedback["rationale"]
        review.invoke(Command(resume=reply), thread)
    judging = create_judge_graph(criterion, **judge).compile(store=store)
    judgments, clock = {}, [time.perf_counter()]
    for name in _RIGHT:
        judgments[name] = judging.invoke(scenario[name])["judgment"]
        clock.append(time.perf_counter())
    memory = JudgeMemory(store, criterion, embeddings=judge["embeddings"])
    return {
        **{name: judgment["value"] for name, judgment in judgments.items()},
        "learned": [guideline.text for guideline in memory.guidelines()],
        "reason": judgments["breaks"]["rationale"],
        "seconds": [round(end - begin, 2) for begin, end in pairwise(clock)],
    }


def judge_by_peer(scenario: Scenario, comments: int, folder: Path, server: str) -> Outcome:
    """Have the peer learn the first comments in one alignment, and judge both cases."""
    shared = {"criterion": scenario["name"], "instructions": scenario["instructions"]}
    shared |= {"scale": "bool", **dict.fromkeys(("range", "choices", "reference_outputs"))}
    train = [
        {**shared, **feedback, "label": feedback["value"], "feedback": feedback["rationale"]}
        for feedback in scenario["feedback"][:comments]
    ]
    test = [{**shared, **scenario[name], "id": name} for name in _RIGHT]
    task = {"train": train, "test": test, "model": MODEL, "k": _PEER_K}
    (folder / "peer.jsonl").unlink(missing_ok=True)  # what is measured again is judged again
    lines = peer_verdicts(task, server, folder, PEER_VENV)
    return {
        **{line["id"]: line["value"] for line in lines},
        "learned": lines[0]["learned"],
        "reason": lines[0]["rationale"],
        "seconds": [round(line["seconds"], 2) for line in lines],
    }


def format_table(outcomes: Sequence[Outcome]) -> str:
    """Return counts and times by side, number of comments and split, with sums, in Markdown."""
    groups = defaultdict[tuple[str, int, str], list[Outcome]](list)
    for outcome in outcomes:
        for split in (outcome["split"], "sum"):
            groups[outcome["side"], outcome["comments"], split].append(outcome)
    head = "side", "comments", "split", "breaks: False", "keeps: True", "failed", "median s, 90 %"
    rows: list[Sequence[str]] = []
    for (side, comments, split), group in sorted(groups.items()):
        values = {name: [outcome[name] for outcome in group] for name in _RIGHT}
        right = [f"{values[name].count(_RIGHT[name])} of {len(group)}" for name in _RIGHT]
        failed = sum(judged.count(None) for judged in values.values())
        seconds = [number for outcome in group for number in outcome["seconds"]] or [np.nan]
        median, most = np.quantile(seconds, (0.5, 0.9))
        counted = str(comments or "before")
        rows.append((side, counted, split, *right, str(failed), f"{median:.1f}, {most:.1f}"))
    return markdown_table(head, rows)


def option_of(text: str) -> tuple[str, Any]:
    """Read an option of the judge, such as `checks=False`."""
    name, _, value = text.partition("=")
    return name, ast.literal_eval(value)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_comment", description=__doc__)
    add = parser.add_argument
    add("--comments", default="1", help="how many, with commas between, such as 1,2,5")
    add("--scenarios", type=Path, default=SCENARIOS)
    add("--split", choices=("development", "training", "held_out", "all"), default="all")
    add("--limit", type=int, help="how many scenarios")
    add("--model", default="local", help="the chat model of ours")
    add("--embeddings", default="local", help="the embeddings of ours")
    add("--option", type=option_of, action="append", default=[], help="such as checks=False")
    add("--peer", action="store_true", help="MLflow's MemAlign, too, by the embedded model")
    add("--record", type=Path, help="record the embedded model's answers")
    add("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.model != "local" and (options.peer or options.record):
        parser.error("--peer and --record are for the embedded model: leave --model out.")
    return options


@contextmanager
def opened_sides(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Side]]:
    """Start what the sides need, and yield what judges a scenario by each."""
    judge = {"model": options.model, "embeddings": options.embeddings, **dict(options.option)}
    if options.embeddings == "local":
        LocalEmbeddings().embed_query("Loads them before the clock starts.")
    if not (options.peer or options.record):
        yield {"ours": partial(judge_scenario, **judge)}
        return
    serve = upstream()
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        options.record.unlink(missing_ok=True)
        serve += ["--record", str(options.record.absolute())]
    with serving(*serve) as server:
        if options.record:
            judge["model"] = served_model(server)
        sides: dict[str, Side] = {"ours": partial(judge_scenario, **judge)}
        if options.peer:
            sides["peer"] = partial(judge_by_peer, server=server, folder=folder)
        yield sides


def main() -> None:
    """Judge all scenarios, and write each outcome and a table of all."""
    options = parse_arguments()
    folder = options.results.absolute() / "one_comment"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".jsonl")
    file.unlink(missing_ok=True)
    counts = {*map(int, options.comments.split(",")), *([] if options.record else [0])}
    scenarios = load_scenarios(options.scenarios, options.split)[: options.limit]
    outcomes: list[Outcome] = []
    with opened_sides(options, folder) as sides:
        for scenario, comments, side in product(scenarios, sorted(counts), sides):
            if comments > len(scenario["feedback"]):
                continue
            outcome = {"name": scenario["name"], "split": scenario["split"], "side": side}
            outcome |= {"comments": comments, "learned": [], "seconds": []}
            try:
                outcome |= sides[side](scenario, comments)
            except (MemAlignError, RuntimeError) as error:
                outcome |= {**dict.fromkeys(_RIGHT), "reason": str(error)}
            outcomes.append(outcome)
            line = json.dumps(outcome, ensure_ascii=False)
            with file.open("a", encoding="utf-8") as results:
                results.write(f"{line}\n")
            print(line, flush=True)
    table = format_table(outcomes)
    file.with_suffix(".md").write_text(f"{table}\n", encoding="utf-8")
    print(f"\n{table}")


if __name__ == "__main__":
    main()
