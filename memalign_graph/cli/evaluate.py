"""`memalign evaluate`: how far the judge agrees with the experts, with thresholds for a build."""

import asyncio
import math
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memalign_graph.cli.exits import ExitStatus
from memalign_graph.cli.opening import read_criterion, read_models, read_named
from memalign_graph.cli.options import evidence_options, positive, told
from memalign_graph.cli.output import Output, is_watched
from memalign_graph.cli.places import memory_path, output_path
from memalign_graph.cli.records import Records
from memalign_graph.cli.scorecard import estimate_text, evaluation_text
from memalign_graph.errors import InvalidInputError
from memalign_graph.evaluation import Estimate, Report, aevaluate
from memalign_graph.evaluation.metrics import labels_of
from memalign_graph.evaluation.results import ALIGNED
from memalign_graph.memory.operations import check_feedback
from memalign_graph.reading import read_feedback
from memalign_graph.scales import Numeric, Scale
from memalign_graph.types import Criterion, Feedback

_ENDINGS = (".html", ".md", ".json")

_LIMITS = (
    ("min_agreement", "agreement"),
    ("min_kappa", "kappa"),
    ("min_ccc", "ccc"),
    ("max_mae", "mae"),
)
"""The options that set a threshold, and the metric of each."""


@dataclass(frozen=True)
class Threshold:
    """What the aligned judge has to reach, or to stay below."""

    option: str
    """The option, such as `--min-kappa`."""

    metric: str
    """The metric."""

    limit: float
    """The threshold; what equals it passes."""

    @property
    def is_most(self) -> bool:
        """Whether it is the most there may be, and not the least."""
        return self.option.startswith("--max")

    def is_met(self, found: Estimate) -> bool:
        """Tell whether a number passes."""
        if found.value is None:
            return False
        return found.value <= self.limit if self.is_most else found.value >= self.limit

    def tell(self, found: Estimate) -> str:
        """Say how a number stands to the threshold."""
        if found.value is None:
            return (
                f"{self.option} {self.limit:g}: the aligned judge's {self.metric} is not defined "
                "on these cases: give more of them, with different values."
            )
        verdict = "met" if self.is_met(found) else "missed"
        return (
            f"{self.option} {self.limit:g}: {verdict} by the aligned judge's {self.metric} of "
            f"{estimate_text(found)}."
        )


def run_evaluate(parsed: Namespace, output: Output) -> int:
    """Evaluate, report, and hold the aligned judge against thresholds."""
    criterion = read_criterion(parsed)
    thresholds = read_thresholds(parsed, criterion.scale)
    reports = _report_paths(parsed)
    if parsed.cache is not None:
        memory_path(parsed.cache, must_exist=False, option="--cache")
    if parsed.feedback == parsed.test:
        raise InvalidInputError("--test: it is the same file as --feedback: leave it out.")
    feedback, left_out = _read(parsed, parsed.feedback, "--feedback", criterion, output)
    test = None
    if parsed.test is not None:
        test, more_left_out = _read(parsed, parsed.test, "--test", criterion, output)
        left_out += more_left_out
    model, embeddings = read_models(parsed, output)
    options: dict[str, Any] = {
        "model": model,
        "embeddings": embeddings,
        "learning_curve": parsed.learning_curve,
        "progress": lambda done, of: _progress(output, done, of),
        "use_guidelines": not parsed.no_guidelines,
        "use_episodes": not parsed.no_episodes,
        **evidence_options(parsed),
        **told(
            test=test,
            distill_model=parsed.distill_model,
            folds=parsed.folds,
            seed=parsed.seed,
            group_by=parsed.group_by,
            credit_cases=parsed.credit_cases,
            resamples=parsed.resamples,
            cache=parsed.cache,
            max_concurrency=positive(parsed.max_concurrency, "--max-concurrency"),
            learn_from=parsed.learn_from,
            guard=parsed.guard,
            batch_size=parsed.batch_size,
            k=parsed.k,
            max_guideline_tokens=parsed.max_guideline_tokens,
        ),
    }
    report = asyncio.run(aevaluate(criterion, feedback, **options))
    output.close_progress()
    if output.as_json:
        output.document(report.to_json())
    else:
        output.line(evaluation_text(report))
    for path in reports:
        report.save(path)
        output.note(f"report in {path}")
    return _status(report, thresholds, left_out, output)


def read_thresholds(parsed: Namespace, scale: Scale) -> list[Threshold]:
    """Read the thresholds, and check that the scale has their metrics."""
    found = []
    for name, metric in _LIMITS:
        limit = getattr(parsed, name)
        if limit is None:
            continue
        option = f"--{name.replace('_', '-')}"
        if not math.isfinite(limit):
            raise InvalidInputError(f"{option}: {limit} is no number to hold a metric against.")
        if not _has(scale, metric):
            raise InvalidInputError(
                f"{option}: there is no {metric} on the criterion's scale, which is {scale.type}: "
                f"give {' or '.join(_options_for(scale))}."
            )
        found.append(Threshold(option, metric, limit))
    return found


def _has(scale: Scale, metric: str) -> bool:
    if metric in ("mae", "ccc"):
        return isinstance(scale, Numeric)
    return metric != "kappa" or labels_of(scale) is not None


def _options_for(scale: Scale) -> list[str]:
    return [f"--{name.replace('_', '-')}" for name, metric in _LIMITS if _has(scale, metric)]


def _report_paths(parsed: Namespace) -> list[Path]:
    read = (parsed.feedback, parsed.test, parsed.criterion)
    found = []
    for name, option in ((parsed.report, "--report"), (parsed.markdown, "--markdown")):
        path = output_path(name, option, *read)
        if path is None:
            continue
        endings = _ENDINGS if option == "--report" else (".md",)
        if path.suffix.lower() not in endings:
            raise InvalidInputError(f"{option}: end the name of {path} in {' or '.join(endings)}.")
        found.append(path)
    return found


def _read(
    parsed: Namespace, source: str, option: str, criterion: Criterion, output: Output
) -> tuple[list[Feedback], int]:
    """Read feedback, and tell of records that can't be used."""
    records = read_named(parsed, source, option, output)
    feedback: list[Feedback] = []
    for index, fields in enumerate(records.fields):
        try:
            feedback.append(check_feedback(read_feedback(fields), criterion))
        except InvalidInputError as error:
            output.warn(f"{option}: {_at(records, index)}: {error}")
    if not feedback:
        raise InvalidInputError(f"{option}: {records.table.source}: no record can be used.")
    return feedback, len(records.fields) - len(feedback)


def _at(records: Records, index: int) -> str:
    return f"{records.table.source}, {records.place(index)}"


def _progress(output: Output, done: int, of: int) -> None:
    if is_watched():  # What there is to do grows on the way, so that no line would be the last.
        output.progress("evaluated", done, of)


def _status(
    report: Report, thresholds: Sequence[Threshold], left_out: int, output: Output
) -> ExitStatus:
    """Hold the aligned judge against the thresholds, and say how it stands to each."""
    missed = False
    for one in thresholds:
        found = report.metric(ALIGNED, one.metric)
        if one.is_met(found):
            output.note(one.tell(found))
        else:
            missed = True
            output.error(one.tell(found))
    if missed:
        return ExitStatus.MISSED
    failed = report.of(ALIGNED).failed
    return ExitStatus.PARTLY if left_out or failed else ExitStatus.DONE
