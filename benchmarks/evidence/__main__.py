"""Evidence beside verdicts on labelled rows: `python -m benchmarks.evidence --data DIR`."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from benchmarks.evidence.judging import Plan, judge
from benchmarks.evidence.table import as_markdown

_SETS = ("saf_10.1_TC", "saf_11.1_SDN", "dices_crowd_safety")


def main() -> None:
    """Judge the test rows of each criterion and seed, and write the tables."""
    options = _options()
    folder: Path = options.results.absolute()
    criteria = {
        name: [
            Plan(
                data=options.data,
                name=name,
                seed=seed,
                share=options.share,
                test=options.test,
                k=options.k,
                folder=folder,
            )
            for seed in range(options.seeds)
        ]
        for name in options.sets
    }
    if not options.table_only:
        _judge([plan for plans in criteria.values() for plan in plans], options)
    there = {
        name: found
        for name, plans in criteria.items()
        if (found := [plan for plan in plans if plan.path.exists()])
    }
    text = as_markdown(there, "python -m benchmarks.evidence --data DIR " + _told(options))
    folder.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


def _judge(plans: Sequence[Plan], options: argparse.Namespace) -> None:
    model = chat_model(options)
    for plan in plans:
        if plan.path.exists():
            continue
        began = time.perf_counter()
        judge(plan, model)
        print(
            f"{plan.name}, seed {plan.seed}: {time.perf_counter() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )


def chat_model(options: argparse.Namespace) -> ChatOpenAI:
    """Return the chat model that the options name.

    Args:
        options: With `base_url` and `model`.

    Returns:
        The model; the embedded one where no server is given.
    """
    base_url, key = options.base_url, "none"
    if base_url is None:
        from memalign_graph.local import start_server

        endpoint = start_server()
        base_url, key = endpoint.base_url, endpoint.api_key
    return ChatOpenAI(
        model=options.model,
        base_url=base_url,
        api_key=SecretStr(key),
        temperature=0,
        max_completion_tokens=300,
        timeout=1800,
        profile={"max_input_tokens": 8192},
    )


def _told(options: argparse.Namespace) -> str:
    return (
        f"--sets {','.join(options.sets)} --seeds {options.seeds} --share {options.share} "
        f"--test {options.test} --k {options.k}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=main.__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="the folder of labelled rows, a file a criterion")
    add("--sets", type=_words, default=_SETS, help="criteria, with commas between")
    add("--seeds", type=int, default=3, help="how many times the training rows are drawn")
    add("--share", type=float, default=0.95, help="which share of the training rows is learned")
    add("--test", type=int, default=40, help="how many test rows are judged")
    add("--k", type=int, default=3, help="how many similar cases a judge is shown")
    add("--base-url", help="an OpenAI-compatible server; the embedded model unless given")
    add("--model", default="qwen2.5-coder-1.5b-instruct", help="the chat model's name there")
    add("--results", type=Path, default=Path(__file__).parents[1] / "results" / "evidence")
    add("--table-only", action="store_true", help="score what is there")
    return parser.parse_args()


def _words(text: str) -> Sequence[str]:
    return tuple(text.split(","))


if __name__ == "__main__":
    main()
