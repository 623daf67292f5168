"""The commands and their arguments."""

import argparse
from importlib.metadata import version
from typing import Any, Protocol

from memalign_graph.cli import options
from memalign_graph.cli.exits import TABLE

POSITIONAL = ("id", "ids", "file", "version")
"""What is given without the name of an option."""

_DESCRIPTION = "An LLM judge that learns from your experts."

_EPILOG = f"""\
a criterion is a file such as this one, in YAML or JSON:
  name: support_tone
  instructions: Is the reply appropriate for the customer?
  scale: boolean             or 1-5 (whole numbers), [poor, fair, good], pairwise,
                             {{minimum: 0, maximum: 1}}, {{choices: [low, high], ordered: true}}

feedback is a file of records, .jsonl, .csv (UTF-8, names in the first line), .tsv or .json:
  inputs, outputs            what the application was given, and what it answered
  value, rationale           what the expert says: one of them, or both
  reference_outputs, author, id, given_at    where you have them
  Cells of a table are text as it stands, also one that looks like JSON; empty ones are missing.
  Other columns are not used, and named. A file `-` is the standard input, lines of JSON.

{TABLE}
examples:
  memalign align -c tone.yaml --feedback experts.csv --field value=label
  memalign judge -c tone.yaml --inputs "My order never came." --outputs "Check the page."
  memalign judge -c tone.yaml --examples answers.jsonl --json > verdicts.jsonl
  memalign evaluate -c tone.yaml --feedback experts.csv --min-kappa 0.6
  memalign memory list -c tone.yaml
"""


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="memalign",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"memalign-graph {version('memalign-graph')}"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_align(commands)
    _add_judge(commands)
    _add_evaluate(commands)
    _add_memory(commands)
    return parser


class _Commands(Protocol):
    """Takes commands, as what `add_subparsers` returns does; argparse has no public name for it."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser: ...


def _command(
    commands: _Commands, name: str, run: str, help_: str, text: str = ""
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=help_, description=text or f"{help_[0].upper()}{help_[1:]}.", allow_abbrev=False
    )
    parser.set_defaults(run=f"memalign_graph.cli.{run}")
    return parser


def _add_demo(commands: _Commands) -> None:
    # Only for the help: `entry` hands its arguments to the demo's own parser.
    commands.add_parser("demo", help="judge, ask, learn and judge again, on cases of its own")


def _add_align(commands: _Commands) -> None:
    parser = _command(
        commands,
        "align",
        "align:run_align",
        "learn from much feedback at once",
        "Learn from much feedback at once. What the memory knows already costs nothing; a run that "
        "failed or was stopped pays only for what is left when it is made again. A record that "
        "can't be used is listed, and keeps no other out.",
    )
    options.add_criterion(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--feedback", "-f", metavar="FILE", help="what experts said; - for stdin")
    source.add_argument(
        "--pending",
        action="store_true",
        help="no new feedback: distil what an earlier run, or `memory forget`, left over",
    )
    options.add_memory(parser)
    options.add_models(parser)
    options.add_learning(parser).add_argument(
        "--replay-cases",
        type=int,
        metavar="N",
        help="how many cases the guard judges again at most; default: 20",
    )
    options.add_judging(parser)
    evidence = options.add_evidence(parser)
    evidence.add_argument(
        "--judge-cases",
        action="store_true",
        help="ask the judge about each case that no judge has judged, as if it were new, with the "
        "options that it judges with: evidence and calibrated confidence are learned from that",
    )
    _add_swap(parser)
    options.add_records(parser)
    options.add_concurrency(parser)
    options.add_output(parser, "print the report as one JSON document")


def _add_judge(commands: _Commands) -> None:
    parser = _command(
        commands,
        "judge",
        "judge:run_judge",
        "judge examples with what the memory holds",
        "Judge examples with what the memory holds. One that fails keeps no other from being "
        "judged: its line tells why.",
    )
    options.add_criterion(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--examples", "-e", metavar="FILE", help="what to judge; - for stdin")
    source.add_argument("--inputs", metavar="TEXT", help="one example: what came in")
    parser.add_argument("--outputs", metavar="TEXT", help="one example: what was answered")
    parser.add_argument(
        "--reference-outputs", metavar="TEXT", help="one example: what it should have been"
    )
    options.add_memory(parser)
    options.add_models(parser, distils=False)
    options.add_judging(parser)
    options.add_evidence(parser)
    _add_swap(parser)
    parser.add_argument(
        "--cite-guidelines", action="store_true", help="have the judge name the guidelines broken"
    )
    options.add_records(parser)
    options.add_concurrency(parser)
    parser.add_argument(
        "--output", "-o", metavar="FILE", help="write the judgments there, as lines of JSON"
    )
    options.add_output(parser, "print the judgments as lines of JSON")


def _add_swap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--swap", action="store_true", help="judge two outputs in both orders (pairwise scales)"
    )


def _add_evaluate(commands: _Commands) -> None:
    parser = _command(
        commands,
        "evaluate",
        "evaluate:run_evaluate",
        "measure how far the judge agrees with the experts",
        "Measure how far the judge agrees with the experts, before and after it learns from them. "
        "By cross-validation, unless --test is given. It learns in a memory of its own, and leaves "
        "yours alone.",
    )
    options.add_criterion(parser)
    parser.add_argument(
        "--feedback",
        "-f",
        metavar="FILE",
        required=True,
        help="what experts said, with values; - for stdin",
    )
    parser.add_argument("--test", metavar="FILE", help="learn from --feedback, and test on this")
    options.add_models(parser)
    options.add_learning(parser)
    options.add_judging(parser)
    options.add_evidence(parser)
    how = parser.add_argument_group("evaluating")
    how.add_argument("--folds", type=int, metavar="N", help="of the cross-validation; default: 5")
    how.add_argument("--seed", type=int, metavar="N", help="of the folds; default: 0")
    how.add_argument(
        "--group-by",
        choices=("example", "inputs"),
        help="what is never both learned from and judged: the same example (default), or the same "
        "inputs",
    )
    how.add_argument(
        "--learning-curve", action="store_true", help="also with 2, 5, 10, ... pieces of feedback"
    )
    how.add_argument(
        "--credit-cases",
        type=int,
        metavar="N",
        help="on how many cases each guideline is left out, to see what it does, which takes a "
        "call each; default: none",
    )
    how.add_argument("--resamples", type=int, metavar="N", help="for the intervals; default: 1000")
    how.add_argument(
        "--cache",
        metavar="FILE",
        help="an SQLite file that keeps models' answers: a run made again pays for none of them",
    )
    limits = parser.add_argument_group(
        "thresholds",
        "Exit with 1 where the aligned judge misses one: its value counts, not its interval.",
    )
    limits.add_argument("--min-agreement", type=float, metavar="X", help="share of equal values")
    limits.add_argument("--min-kappa", type=float, metavar="X", help="Cohen's kappa")
    limits.add_argument("--min-ccc", type=float, metavar="X", help="concordance correlation")
    limits.add_argument("--max-mae", type=float, metavar="X", help="mean absolute error")
    options.add_records(parser)
    options.add_concurrency(parser)
    parser.add_argument("--report", metavar="FILE", help="write a report: .html, .md or .json")
    parser.add_argument("--markdown", metavar="FILE", help="write the report as Markdown")
    options.add_output(parser, "print the report as one JSON document")


def _add_memory(commands: _Commands) -> None:
    memory = commands.add_parser(
        "memory",
        help="look into the memory, take back, go back, move",
        description="Look into the memory, take back, go back, move. Wherever an id or a version "
        "is asked for, its beginning will do, from four characters on.",
        allow_abbrev=False,
    )
    actions = memory.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_looking(actions)
    _add_changing(actions)


def _action(
    actions: _Commands, name: str, run: str, help_: str, text: str = ""
) -> argparse.ArgumentParser:
    parser = _command(actions, name, run, help_, text)
    options.add_criterion(parser)
    options.add_memory(parser)
    options.add_output(parser, "print the result as one JSON document")
    return parser


def _add_looking(actions: _Commands) -> None:
    listing = _action(actions, "list", "looking:run_list", "what it holds: guidelines and episodes")
    listing.add_argument(
        "--limit",
        type=int,
        default=50,
        metavar="N",
        help="how many of each; 0 for all; default: 50",
    )
    show = _action(
        actions, "show", "looking:run_show", "one guideline or episode in full, with its sources"
    )
    show.add_argument("id", metavar="ID")
    history = _action(actions, "history", "looking:run_history", "its commits, newest first")
    history.add_argument(
        "--limit", type=int, default=50, metavar="N", help="how many; 0 for all; default: 50"
    )
    export = _action(
        actions,
        "export",
        "looking:run_export",
        "write it as lines of JSON that people can read",
    )
    export.add_argument("file", metavar="FILE", help="where to; - for stdout")


def _add_changing(actions: _Commands) -> None:
    forget = _action(
        actions,
        "forget",
        "changing:run_forget",
        "take feedback back, and what was learned from it alone",
        "Take feedback back, and what was learned from it alone. Guidelines with other sources are "
        "distilled again from those: at once with --model, else by the next align. Only feedback "
        "that meets all that is given is forgotten. An id may also be a guideline's: it is "
        "removed, and its feedback stays. What is forgotten can be had back with rollback; what is "
        "purged can't.",
    )
    forget.add_argument("ids", metavar="ID", nargs="*", help="episodes, or guidelines")
    forget.add_argument("--author", metavar="NAME", help="all that this expert said")
    forget.add_argument(
        "--feedback-id",
        action="append",
        metavar="ID",
        help="by the id the feedback had in its file; may be repeated",
    )
    forget.add_argument("--purge", action="store_true", help="erase it for good, from the past too")
    forget.add_argument(
        "--checkpoints",
        metavar="FILE",
        help="for --purge: the SQLite file of the threads it passed through; default: the memory's",
    )
    forget.add_argument(
        "--model", metavar="NAME", help="distil again at once, with this chat model"
    )
    forget.add_argument("--yes", "-y", action="store_true", help="do not ask")
    rollback = _action(
        actions, "rollback", "changing:run_rollback", "make it again what it was, in a new commit"
    )
    rollback.add_argument("version", metavar="VERSION", help="as history, or a judgment, names it")
    importing = _action(
        actions,
        "import",
        "changing:run_import",
        "bring in what export wrote",
        "Bring in what export wrote: ids, times and sources stay as they are, nothing is embedded "
        "again, and what is in this memory in a newer form stays.",
    )
    importing.add_argument("file", metavar="FILE", help="the export; - for stdin")
    for parser in (forget, rollback, importing):
        parser.add_argument("--by", metavar="NAME", help="who asks for it, for the history")
