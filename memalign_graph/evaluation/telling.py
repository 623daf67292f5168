"""What has to be known to read an evaluation's numbers, in sentences. Pure functions."""

from collections import Counter
from collections.abc import Mapping, Sequence

from memalign_graph.evaluation.lab import Learned
from memalign_graph.evaluation.results import EvaluatedCase
from memalign_graph.evaluation.scores import JudgeScores
from memalign_graph.evaluation.variants import Variant


def not_learned(memories: Mapping[tuple[int, str], Learned]) -> list[str]:
    """Say what was not learned from."""
    told: dict[str, str] = {}
    for (_, name), learned in memories.items():
        rejected = learned.report.rejected if learned.report is not None else []
        if rejected:
            told.setdefault(
                name,
                f"{name}: {len(rejected)} pieces of feedback of a fold were not learned from; the "
                f"first: {rejected[0].reason}",
            )
    return list(told.values())


def not_judged(
    cases: Sequence[EvaluatedCase], scores: Sequence[JudgeScores], variants: Sequence[Variant]
) -> list[str]:
    """Say which verdicts are missing."""
    return [
        f"{one.judge}: {one.failed} of {one.failed + one.cases} cases have no verdict and are in "
        f"none of its numbers; the first: {_first_failure(cases, one.judge)}"
        for one in scores
        if one.failed and one.judge in {variant.name for variant in variants}
    ]


def degraded(cases: Sequence[EvaluatedCase]) -> list[str]:
    """Say what judgments had to do without."""
    counts = Counter(
        (name, warning)
        for case in cases
        for name, judgment in case.judgments.items()
        for warning in judgment.warnings
    )
    return [
        f"{name}: {count} judgments say: {warning}" for (name, warning), count in counts.items()
    ]


def decided_by_evidence(cases: Sequence[EvaluatedCase], variants: Sequence[Variant]) -> list[str]:
    """Say how often the evidence decided."""
    told = []
    for name in [one.name for one in variants if one.judge.decide == "evidence"]:
        given = [case.judgments[name].evidence for case in cases if name in case.judgments]
        decided = sum(one is not None and one.decided_by == "evidence" for one in given)
        told.append(f"{name}: the evidence decided {decided} of {len(given)} cases.")
    return told


def _first_failure(cases: Sequence[EvaluatedCase], judge: str) -> str:
    return next((case.failures[judge] for case in cases if judge in case.failures), "unknown")
