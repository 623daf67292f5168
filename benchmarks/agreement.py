"""Agreement with human experts, ours and the peer's: `python -m benchmarks.agreement`.

A set is one criterion: rows that are learned from, and rows that are judged. A run that was cut off
asks no model again what was answered. See the README beside this file.
"""

import argparse
import gzip
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import inf, nan
from pathlib import Path
from statistics import fmean
from typing import Any, cast, get_args

import numpy as np
from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages
from langchain_openai import ChatOpenAI
from numpy.typing import NDArray

from benchmarks.one_comment import served_model, upstream
from benchmarks.plan import PEER_VENV, markdown_table, peer_verdicts, serving
from memalign_graph import Boolean, Categorical, Criterion, Judge, Numeric, Pairwise
from memalign_graph.conversation import read_turn, what_gate_sees
from memalign_graph.evaluation import Report, evaluate
from memalign_graph.evaluation.dataset import EVIDENCE, KNN, MAJORITY, MEDIAN
from memalign_graph.evaluation.experiment import without_memory
from memalign_graph.evaluation.metrics import concordance, draw_weights, nanmean
from memalign_graph.identity import digest
from memalign_graph.local import LocalEmbeddings
from memalign_graph.local.weights import MODEL
from memalign_graph.models import declare_small
from memalign_graph.prompts.fences import as_text, estimate_tokens
from memalign_graph.scales import Scale
from memalign_graph.settings import Sees
from memalign_graph.types import parse_example

DATA = Path(__file__).parent / "data" / "agreement"
SETS = (
    "saf_2.3_DLL,saf_6.2_IPP,saf_8.2_MM,saf_10.1_TC,saf_11.1_SDN,saf_12.1_PE,dices_crowd_safety,"
    "python_solution_correct,halueval_no_hallucination,hh_harmless_preference,airline_run_right,"
    "airline_call_right"
)
_EXAMPLE = ("inputs", "outputs", "reference_outputs")
_OURS, _BASE, _PEER, _CONSTANT = "ours", "base", "peer", "constant"
_AGAINST = (_BASE, KNN, _PEER)
_SIZES = (5, 10, 20, 40)
_DRAWS = 1_000
_LEVEL = (0.025, 0.975)

Row = dict[str, Any]
"""One labelled case."""

Outcome = dict[str, Any]
"""What is known of a set: its scale, the experts' values, each judge's, and the learning curve."""

Array = NDArray[np.float64]


def case_tokens(row: Row) -> int:
    """Estimate the tokens of a row's example in a prompt."""
    parts = [as_text(row[name]) for name in _EXAMPLE if row[name] is not None]
    return sum(map(estimate_tokens, parts))


def load_rows(folder: Path, name: str, max_tokens: float = inf) -> list[Row]:
    """Read a set's rows of at most so many tokens from its JSONL file, which may be compressed.

    After a colon, the name may say what a gate would see of a run of messages (`sees`).
    """
    name, _, sees = name.partition(":")
    plain, packed = folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"
    text = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    rows = [json.loads(line) for line in text.decode().splitlines()]
    rows = [row for row in rows if case_tokens(row) <= max_tokens]
    if not sees:
        return rows
    if sees not in get_args(Sees):
        raise ValueError(f"--sets: {sees!r} after the colon is none of {get_args(Sees)}.")
    return [seen_by_gate(row, cast("Sees", sees)) for row in rows]


def draw_rows(name: str, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """Draw the rows of a set that are learned, and those that are judged."""
    rows = load_rows(options.data, name, options.max_tokens)
    if options.no_reference:
        rows = [{**row, "reference_outputs": None} for row in rows]
    random.Random(options.seed).shuffle(rows)  # noqa: S311 - nothing secret
    train, test = ([row for row in rows if row["split"] == split] for split in ("train", "test"))
    return train[: options.train], test[: options.test]


def messages_of(run: Sequence[dict[str, Any]]) -> list[BaseMessage]:
    """Return a run's messages; LangChain's reader needs content beside tool calls, too."""
    return convert_to_messages(
        [{**message, "content": message.get("content") or ""} for message in run]
    )


def seen_by_gate(row: Row, sees: Sees) -> Row:
    """Return a row whose outputs are a run of messages as a gate would see it."""
    messages = messages_of(row["outputs"])
    while isinstance(messages[-1], HumanMessage):
        messages.pop()
    return row | (what_gate_sees(read_turn(messages, {}), "messages", sees) or {})


def scale_of(row: Row) -> Scale:
    low, high = row["range"] or (0, 1)
    scales: dict[str, Any] = {
        "bool": Boolean,
        "categorical": lambda: Categorical(choices=row["choices"]),
        "pairwise": lambda: Pairwise(allow_tie=False),
        "numeric": lambda: Numeric(minimum=low, maximum=high, integer=high - low > 1),
    }
    scale: Scale = scales[row["scale"]]()
    return scale


def feedback_of(row: Row) -> dict[str, Any]:
    example = {name: row[name] for name in _EXAMPLE}
    return {**example, "value": row["label"], "rationale": row["feedback"], "author": "expert"}


def judges_of(judge: Judge, *, ablations: bool) -> dict[str, Judge]:
    """Return the judges that are compared; the one with the default options is the last."""
    chat = cast("ChatOpenAI", judge.model)
    judges = {_BASE: without_memory(judge)}
    if ablations:
        judges |= {
            "no guidelines": judge.but(use_guidelines=False),
            "no cases": judge.but(use_episodes=False),
            "few guidelines": judge.but(max_guideline_tokens=80),
            "checks off": judge.but(checks=False),
            "rules of batches": judge.but(distill_model=declare_small(chat, small=False)),
            "evidence decides": judge.but(decide="evidence"),
        }
    return {**judges, _OURS: judge}


def chat_model(options: argparse.Namespace, server: str) -> ChatOpenAI:
    """Return the judge's model, by default the embedded one."""
    if not options.model:
        return served_model(server)
    profile = {"max_input_tokens": options.window}
    named = {"model": options.model, "temperature": 0, "max_completion_tokens": 512}
    return served_model(server, **named, profile=profile)


def judge_set(name: str, server: str, options: argparse.Namespace) -> Outcome:
    """Let both sides learn a set's training rows and judge its test rows."""
    train, test = draw_rows(name, options)
    folder: Path = options.results.absolute() / name.replace(":", ".")
    folder.mkdir(parents=True, exist_ok=True)
    criterion = Criterion(
        name=name.partition(":")[0].replace(".", "_"),  # a namespace's labels can't have a dot
        instructions=test[0]["instructions"],
        scale=scale_of(test[0]),
    )
    judge = Judge(
        criterion=criterion,
        k=options.k,
        embeddings=LocalEmbeddings(),
        model=chat_model(options, server),
    )
    report = evaluate(
        criterion,
        list(map(feedback_of, train)),
        test=list(map(feedback_of, test)),
        judges=judges_of(judge, ablations=options.ablations),
        learning_curve=options.curve,
        sizes=_SIZES,
        cache=folder / "answers.db",
        progress=False,
        max_concurrency=options.at_once,
        seed=options.seed,
    )
    report.save(folder / "report.html")
    ids = {parse_example({part: row[part] for part in _EXAMPLE}).id: row["id"] for row in test}
    values = values_of(report, ids)
    if not options.no_peer:
        task = {"train": train, "test": test, "model": options.model or MODEL, "k": options.k}
        verdicts = peer_verdicts(task, server, folder, options.peer_venv)
        values[_PEER] = {verdict["id"]: verdict["value"] for verdict in verdicts}
    tokens = Counter[str]()
    for row in report.usage:
        if row.stage == "judge":
            tokens[row.judge] += row.input_tokens + row.cached_input_tokens
    return {
        "set": name,
        "scale": test[0]["scale"],
        "learned": len(train),
        "truth": {row["id"]: row["label"] for row in test},
        "values": values,
        "curve": curve_of(report),
        "tokens": tokens,
    }


def values_of(report: Report, ids: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return each judge's values by the rows' ids; both constant baselines have one name."""
    values = defaultdict[str, dict[str, Any]](dict)
    for case in report.cases:
        for judge, prediction in case.predictions.items():
            name = _CONSTANT if judge in (MAJORITY, MEDIAN) else judge
            values[name][ids[case.example.id]] = prediction.value
    return dict(values)


def curve_of(report: Report) -> dict[str, list[float]]:
    """Return metrics on the test rows, each as the judge's memory grows."""
    columns = defaultdict[str, list[float]](list)
    for step in report.curve.steps if report.curve else []:
        metrics, labels = step.unseen.metrics, step.unseen.labels
        known: dict[str, float | None] = {}
        known |= {name: metrics[name].value for name in ("ccc", "mae") if name in metrics}
        if not known:
            recalls: Any = {label.label: label.recall.value for label in labels if label.support}
            known["balanced"] = fmean(recalls.values() or [nan])
            known |= {"caught": recalls["false"]} if "false" in recalls else {}
        for name, value in known.items():
            columns[name].append(nan if value is None else value)
    return dict(columns)


def measure(outcome: Outcome) -> dict[str, dict[str, Array]]:
    """Return draws of each metric, by metric and judge; the first draw has each row once.

    A row without a verdict is wrong where values are labels, and left out where they are numbers.
    """
    truth = outcome["truth"]
    weights = draw_weights(list(truth), _DRAWS, int(digest(outcome["set"])[:8], 16))
    expected = np.array(list(truth.values()))
    metrics = defaultdict[str, dict[str, Array]](dict)
    for judge, by_id in outcome["values"].items():
        with np.errstate(invalid="ignore", divide="ignore"):
            if outcome["scale"] == "numeric":
                value = np.array([by_id.get(key) for key in truth], float)  # None is NaN
                shown, value = weights * ~np.isnan(value), np.nan_to_num(value)
                metrics["ccc"][judge] = concordance(expected, value, shown)
                metrics["mae"][judge] = (shown @ np.abs(value - expected)) / shown.sum(1)
            else:
                hits = np.array([by_id.get(key) == label for key, label in truth.items()])
                recalls = {}
                for label in set(truth.values()):
                    of_label = weights * (expected == label)
                    recalls[label] = (of_label @ hits) / of_label.sum(1)
                metrics["balanced accuracy"][judge] = mean_of(list(recalls.values()))
                if outcome["scale"] == "bool":
                    metrics["bad answers caught"][judge] = recalls[False]
    return metrics


def mean_of(draws: Sequence[Array]) -> Array:
    """Return the mean of each draw over those that are defined; NaN where none is."""
    with np.errstate(invalid="ignore"):
        return nanmean(np.transpose(draws))


def format_estimate(draws: Array, sign: str = "") -> str:
    """Return a number and its interval."""
    low, high = np.nanquantile(draws[1:], _LEVEL)
    return f"{draws[0]:{sign}.2f} ({low:{sign}.2f} to {high:{sign}.2f})"


def format_tables(outcomes: Sequence[Outcome]) -> str:
    """Return the table of all sets with what is pooled by metric, and the learning curves."""
    judges = list(dict.fromkeys(name for outcome in outcomes for name in outcome["values"]))
    judges.sort(key=[_CONSTANT, KNN, EVIDENCE, _BASE, *judges].index)
    against = [name for name in _AGAINST if name in judges]
    head = ["set", "learned, judged", "metric", *judges, *(f"ours less {it}" for it in against)]
    rows: list[list[str]] = []
    pooled = defaultdict[str, list[dict[str, Array]]](list)

    def add_row(name: str, counts: str, metric: str, draws: dict[str, Array]) -> None:
        cells = [format_estimate(draws[judge]) if judge in draws else "" for judge in judges]
        cells += [
            format_estimate(draws[_OURS] - draws[other], "+") if other in draws else ""
            for other in against
        ]
        rows.append([name, counts, metric, *cells])

    for outcome in outcomes:
        counts = f"{outcome['learned']}, {len(outcome['truth'])}"
        for metric, draws in measure(outcome).items():
            add_row(outcome["set"], counts, metric, draws)
            pooled[metric].append(draws)
    for metric, sets in pooled.items():
        common = set.intersection(*map(set, sets))
        means = {judge: mean_of([draws[judge] for draws in sets]) for judge in common}
        add_row(f"mean of {len(sets)} sets", "", metric, means)
    curves = [
        [outcome["set"], name, *(f"{number:.2f}" for number in numbers)]
        for outcome in outcomes
        for name, numbers in outcome["curve"].items()
    ]
    steps = ["set", "metric", "0", *map(str, _SIZES)][: max(map(len, curves), default=0)]
    notes = "\n".join(note for outcome in outcomes for note in notes_on(outcome))
    return "\n\n".join(
        [markdown_table(head, rows), notes, *([markdown_table(steps, curves)] if curves else [])]
    )


def notes_on(outcome: Outcome) -> Iterator[str]:
    """Yield the length of the prompts, and which judges have no value for some rows."""
    truth = outcome["truth"]
    tokens = [f"{judge} {sum_ / len(truth):,.0f}" for judge, sum_ in outcome["tokens"].items()]
    yield f"- {outcome['set']}: prompt tokens a judgment: {', '.join(tokens)}"
    for judge, values in outcome["values"].items():
        if count := sum(values.get(key) is None for key in truth):
            yield f"- {outcome['set']}: {judge} has no value for {count} rows"


def add_shared_arguments(parser: argparse.ArgumentParser, train: int, test: int) -> None:
    """Add what is shared with `approvals`: the rows, and the model that judges them."""
    add = parser.add_argument
    add("--train", type=int, default=train, help="training rows that are learned")
    add("--test", type=int, default=test, help="test rows that are judged")
    add("--seed", type=int, default=1, help="chooses the rows")
    add("--data", type=Path, default=DATA, help="the folder of labelled rows")
    add("--no-reference", action="store_true", help="leaves out the reference answers")
    add("--max-tokens", type=float, default=inf, help="leaves out longer cases")
    add("--at-once", type=int, default=1, help="judgments at a time")
    add("--base-url", help="an OpenAI-compatible server; by default the embedded model")
    add("--model", help="the chat model's name there; by default it is the embedded one")
    add("--window", type=int, default=8_192, help="its context window, in tokens")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement", description=__doc__)
    add = parser.add_argument
    add_shared_arguments(parser, train=40, test=50)
    add("--sets", default=SETS, help="names of files there, with commas between")
    add("--minutes", type=float, default=inf, help="begin no set after this time")
    add("--no-peer", action="store_true", help="ours alone")
    add("--curve", action="store_true", help="also judge after 5, 10, 20 and 40 rows")
    add("--ablations", action="store_true", help="also judges without one of the default's parts")
    add("--k", type=int, default=5, help="similar cases of a judgment")
    add("--port", type=int, default=18765, help="the server's port; the cache's keys depend on it")
    add("--peer-venv", type=Path, default=PEER_VENV)
    add("--results", type=Path, default=Path(__file__).parent / "results" / "agreement")
    return parser.parse_args()


def main() -> None:
    """Judge the sets, and write the tables after each."""
    options = parse_arguments()
    outcomes: list[Outcome] = []
    end = time.monotonic() + 60 * options.minutes
    with serving("--port", str(options.port), *upstream(options.base_url)) as server:
        for name in options.sets.split(","):
            if time.monotonic() > end:
                sys.stdout.write(f"{name}: not begun, because --minutes are over\n")
                continue
            outcomes.append(judge_set(name, server, options))
            tables = format_tables(outcomes)
            options.results.with_suffix(".md").write_text(f"{tables}\n", encoding="utf-8")
            sys.stdout.write(f"{name}: done\n")
    if outcomes:
        sys.stdout.write(f"\n{format_tables(outcomes)}\n")


if __name__ == "__main__":
    main()
