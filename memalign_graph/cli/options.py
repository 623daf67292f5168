"""The options that commands share, and numbers read from text."""

import argparse
import os
from typing import Any, get_args

from memalign_graph.cli.places import DEFAULT_MEMORY
from memalign_graph.errors import InvalidInputError
from memalign_graph.types import Decide

CRITERION_VARIABLE = "MEMALIGN_CRITERION"
"""Names the criterion's file where `--criterion` does not; Studio is served the same one."""

FORMATS = ("jsonl", "csv", "tsv", "json")
"""How a file of records can be written."""


def add_criterion(parser: argparse.ArgumentParser) -> None:
    """Add what says what is judged."""
    parser.add_argument(
        "--criterion",
        "-c",
        metavar="FILE",
        default=os.environ.get(CRITERION_VARIABLE) or None,
        help="what is judged: a YAML or JSON file with name, instructions and scale (see `memalign "
        f"--help`); {CRITERION_VARIABLE} names it where this does not",
    )


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Add where the memory is."""
    parser.add_argument(
        "--memory",
        "-m",
        metavar="FILE",
        help=f"the SQLite file of the memory; default: {DEFAULT_MEMORY} in this folder",
    )
    parser.add_argument(
        "--namespace",
        metavar="LABELS",
        default="memalign",
        help="keeps memories in one file apart, such as shop.emea; default: %(default)s",
    )


def add_models(parser: argparse.ArgumentParser, *, distils: bool = True) -> None:
    """Add which models are asked."""
    group = parser.add_argument_group(
        "models",
        "As provider:name, such as openai:gpt-4.1-mini, or local for the embedded one. Where none "
        "is given: MEMALIGN_MODEL and MEMALIGN_EMBEDDINGS, else OpenAI's if OPENAI_API_KEY is set, "
        "else the embedded ones.",
    )
    group.add_argument("--model", metavar="NAME", help="the chat model that judges")
    if distils:
        group.add_argument(
            "--distill-model",
            metavar="NAME",
            help="the chat model that distils feedback; default: the one that judges",
        )
    group.add_argument("--embeddings", metavar="NAME", help="what finds similar cases")


def add_learning(parser: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    """Add how feedback is learned from."""
    group = parser.add_argument_group("learning")
    group.add_argument(
        "--learn-from", choices=("both", "labels", "words"), help="what of it; default: both"
    )
    group.add_argument(
        "--guard",
        choices=("replay",),
        help="replay: judge seen cases again first, and keep out what would break them",
    )
    group.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="how many comments one call distils at most; default: 50",
    )
    return group


def add_judging(parser: argparse.ArgumentParser) -> None:
    """Add how it is judged."""
    group = parser.add_argument_group("judging")
    group.add_argument(
        "--k", type=int, metavar="N", help="how many similar cases the judge is shown; default: 5"
    )
    group.add_argument(
        "--max-guideline-tokens",
        type=int,
        metavar="N",
        help="how much of the prompt guidelines may take; default: 2300",
    )
    group.add_argument("--no-guidelines", action="store_true", help="judge without guidelines")
    group.add_argument("--no-episodes", action="store_true", help="judge without similar cases")


def add_evidence(parser: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    """Add how sure the judge is, and what decides."""
    group = parser.add_argument_group("evidence")
    group.add_argument(
        "--decide",
        choices=get_args(Decide),
        help="what the value comes from: the judge's verdict (default), or that weighed against "
        "the experts' values of similar cases, as the evidence",
    )
    group.add_argument(
        "--confidence",
        action="store_true",
        help="measure how sure the judge is, with one more short call",
    )
    group.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help="measure that by N answers where the model gives no log-probabilities",
    )
    return group


def evidence_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """Read what `add_evidence` added."""
    return {
        "confidence": parsed.confidence or bool(parsed.samples),
        **told(samples=parsed.samples, decide=parsed.decide),
    }


def add_records(parser: argparse.ArgumentParser) -> None:
    """Add how files of records are read."""
    group = parser.add_argument_group("files of records")
    group.add_argument(
        "--format", choices=FORMATS, help="how they are written; default: by the suffix"
    )
    group.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="FIELD=COLUMN",
        help="a field that the file calls otherwise, such as value=label or rationale=comment; "
        "outputs=A,B makes the two outputs of a pairwise criterion; may be repeated",
    )


def add_concurrency(parser: argparse.ArgumentParser) -> None:
    """Add how much is under way at a time."""
    parser.add_argument(
        "--max-concurrency",
        type=int,
        metavar="N",
        help="how many calls of a model are under way at a time; default: 32",
    )


def add_output(parser: argparse.ArgumentParser, json_help: str) -> None:
    """Add how a command tells its result."""
    parser.add_argument("--json", action="store_true", help=json_help)
    parser.add_argument(
        "--quiet", "-q", action="store_true", help="no progress or notes on stderr, but warnings"
    )


def positive(given: int | None, option: str) -> int | None:
    """Check a number that counts something."""
    if given is not None and given < 1:
        raise InvalidInputError(f"{option}: {given} is not a whole number from 1 on.")
    return given


def told(**options: Any) -> dict[str, Any]:
    """Return the options that were given: the others keep their defaults."""
    return {name: value for name, value in options.items() if value is not None}
