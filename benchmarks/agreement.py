"""Ours and the peer on the same labelled rows: `python -m benchmarks.agreement --data DIR`.

`DIR` has a JSONL file for each criterion; see the README. Each is one call of `evaluate`, with the
peer as one more judge, whose verdicts come from its own environment.
"""

import argparse
import json
import random
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from benchmarks.plan import PEER_VENV, peer_python, run_side, serving
from memalign_graph import Boolean, Categorical, Criterion, Judge, Numeric, Pairwise
from memalign_graph.evaluation import Report, evaluate
from memalign_graph.evaluation.metrics import Prediction
from memalign_graph.evaluation.report import score_cases
from memalign_graph.local import LocalEmbeddings
from memalign_graph.scales import Scale
from memalign_graph.settings import Alignment
from memalign_graph.types import parse_example

_EXAMPLE = ("inputs", "outputs", "reference_outputs")

Row = dict[str, Any]
"""One labelled case."""


def scale_of(row: Row) -> Scale:
    """Return the scale of a row's criterion."""
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
    """Return a row as feedback."""
    example = {name: row[name] for name in _EXAMPLE}
    return {**example, "value": row["label"], "rationale": row["feedback"], "author": "expert"}


def judges_of(judge: Judge) -> dict[str, Judge | Alignment]:
    """Return the judge without memory, by its verdict, and by evidence without and with checks."""
    return {
        "base": judge.but(decide="verdict", use_guidelines=False, use_episodes=False),
        "verdict": judge.but(decide="verdict"),
        "weighed": judge,
        "weighed with checks": judge.but(checks=True),
    }


def with_peer(report: Report, values: dict[str, Any]) -> Report:
    """Add the peer's verdicts, by example id, to a report as one more judge."""
    scale = report.criterion.scale
    cases = []
    for case in report.cases:
        value = values.get(case.example.id)
        verdict = Prediction(value=None if value is None else scale.validate_value(value))
        update = {"predictions": {**case.predictions, "peer": verdict}}
        cases.append(case.model_copy(update=update))
    names = [*(scores.judge for scores in report.scores), "peer"]
    pairs = [(pair.judge, pair.against) for pair in report.comparisons]
    pairs += [("peer", report.judges[0]), (report.judges[-1], "peer")]
    scores, compared = score_cases(cases, scale, names, pairs, report.settings)
    return report.model_copy(update={"cases": cases, "scores": scores, "comparisons": compared})


def compare(name: str, server: str, options: argparse.Namespace) -> Report:
    """Let both sides learn a criterion's training rows and judge its test rows."""
    folder: Path = options.results.absolute() / name
    folder.mkdir(parents=True, exist_ok=True)
    lines = (options.data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows: list[Row] = [json.loads(line) for line in lines]
    random.Random(options.seed).shuffle(rows)  # noqa: S311 - nothing secret
    train = [row for row in rows if row["split"] == "train"][: options.train]
    test = [row for row in rows if row["split"] == "test"][: options.test]
    # A namespace's labels can't have a dot.
    criterion = Criterion(
        name=test[0]["criterion"].replace(".", "_"),
        instructions=test[0]["instructions"],
        scale=scale_of(test[0]),
    )
    judge = Judge(
        criterion=criterion,
        k=options.k,
        decide="evidence",
        embeddings=LocalEmbeddings(),
        model=ChatOpenAI(
            model=options.model,
            base_url=server,
            api_key=SecretStr("none"),
            temperature=0,
            max_completion_tokens=512,
            timeout=1_800,
            profile={"max_input_tokens": options.window},
        ),
    )
    report = evaluate(
        criterion,
        list(map(feedback_of, train)),
        test=list(map(feedback_of, test)),
        judges=judges_of(judge),
        cache=folder / "answers.db",
        progress=False,
        max_concurrency=1,
        seed=options.seed,
    )
    if not options.no_peer:
        task = {"train": train, "test": test, "model": options.model, "k": options.k}
        verdicts = peer_verdicts(task, server, folder, options.peer_venv)
        report = with_peer(report, verdicts)
    report.save(folder / "report.html")
    report.save(folder / "report.json")
    return report


def peer_verdicts(task: Row, server: str, folder: Path, venv: Path) -> dict[str, Any]:
    """Let the peer judge in its own environment; keeps the verdicts on a task in files."""
    file, verdicts, text = folder / "peer.json", folder / "peer.jsonl", json.dumps(task)
    known = verdicts.read_text(encoding="utf-8").splitlines() if verdicts.exists() else []
    if len(known) < len(task["test"]) or file.read_text(encoding="utf-8") != text:
        verdicts.unlink(missing_ok=True)
        file.write_text(text, encoding="utf-8")
        run_side(peer_python(venv), "peer", [str(file), str(verdicts)], server, folder)
    lines = map(json.loads, verdicts.read_text(encoding="utf-8").splitlines())
    values = {line["id"]: line["value"] for line in lines}
    return {
        parse_example({name: row[name] for name in _EXAMPLE}).id: values.get(row["id"])
        for row in task["test"]
    }


def main() -> None:
    """Compare both sides; writes a report for each criterion, and all tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="the folder of labelled rows")
    add("--sets", required=True, help="criteria: names of files there, with commas between")
    add("--no-peer", action="store_true", help="ours alone")
    add("--train", type=int, default=50, help="training rows that are learned")
    add("--test", type=int, default=50, help="test rows that are judged")
    add("--seed", type=int, default=1, help="chooses the rows")
    add("--k", type=int, default=5, help="similar cases in a judge's prompt")
    add("--base-url", help="an OpenAI-compatible server; by default the embedded model")
    add("--port", type=int, default=18765, help="the server's port; the cache's keys depend on it")
    add("--model", default="qwen2.5-coder-1.5b-instruct", help="the chat model's name there")
    add("--window", type=int, default=8_192, help="its context window, in tokens")
    add("--peer-venv", type=Path, default=PEER_VENV)
    add("--results", type=Path, default=Path(__file__).parent / "results" / "agreement")
    options = parser.parse_args()
    upstream, key = options.base_url, "none"
    if not upstream:
        from memalign_graph.local import start_server

        endpoint = start_server()
        upstream, key = endpoint.base_url, endpoint.api_key
    written = ["# Agreement with human experts"]
    with ExitStack() as stack:
        port = str(options.port)
        server = stack.enter_context(serving("--port", port, "--upstream", upstream, "--key", key))
        for name in options.sets.split(","):
            report = compare(name, server, options)
            counts = f"{report.settings.feedback - len(report.cases)}, {len(report.cases)}"
            written.append(f"# {name}\n\nRows learned, judged: {counts}.\n\n{report.summary()}")
            sys.stdout.write(f"{written[-1]}\n")
            file = options.results.with_suffix(".md")
            file.write_text("\n\n".join(written), encoding="utf-8")


if __name__ == "__main__":
    main()
