"""The table at the end of the demo. Pure functions: an outcome in, text out."""

import textwrap
from collections.abc import Sequence

from memalign_graph.demo.cases import Case, CaseFile
from memalign_graph.demo.loop import Outcome
from memalign_graph.scales import Numeric
from memalign_graph.types import Judgment

_WIDTH = 96


def render(cases: CaseFile, outcome: Outcome) -> str:
    """Write what happened: the cases, what was learned, and how well the judge agrees."""
    parts = [
        _table(cases, outcome),
        _guidelines(cases, outcome),
        _words(cases, outcome),
        _agreement(cases, outcome),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(cases: CaseFile, outcome: Outcome) -> str:
    show = cases.criterion.scale.render
    rows = [("case", "", "expert", "judge before", "judge after", "")]
    for kind, group in (("taught", cases.taught), ("unseen", cases.unseen)):
        for case in group:
            after = outcome.after.get(case.id)
            rows.append(
                (
                    case.id,
                    kind,
                    show(case.expert.value),
                    show(outcome.before[case.id].value),
                    "" if after is None else show(after.value),
                    _change(cases, case, outcome.before[case.id], after),
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths).rstrip())
    return "\n".join(lines)


def _change(cases: CaseFile, case: Case, before: Judgment, after: Judgment | None) -> str:
    if after is None:
        return ""
    errors = [_error(cases, case, one) for one in (before, after)]
    if errors[1] == 0:
        return "right" if errors[0] == 0 else "now right"
    if errors[1] < errors[0]:
        return "closer"
    return "still wrong" if errors[0] > 0 else "now wrong"


def _guidelines(cases: CaseFile, outcome: Outcome) -> str:
    if not outcome.guidelines:
        return "No guideline was learned."
    lines = ["Guidelines in memory, with the feedback they came from:"]
    for guideline in outcome.guidelines:
        lines.append(_wrap(f"- {guideline.text}", 2))
        for key in guideline.episode_ids:
            name, episode = outcome.episodes[key]
            said = episode.rationale or cases.criterion.scale.show(episode.value or False)
            lines.append(_wrap(f'    from {name}: "{said}"', 6))
    return "\n".join(lines)


def _words(cases: CaseFile, outcome: Outcome) -> str:
    lines = ["What the judge says of the unseen cases now:"]
    lines += [_wrap(f"- {case.id}: {outcome.after[case.id].rationale}", 2) for case in cases.unseen]
    return "\n".join(lines)


def _agreement(cases: CaseFile, outcome: Outcome) -> str:
    before = [_error(cases, case, outcome.before[case.id]) for case in cases.unseen]
    after = [_error(cases, case, outcome.after[case.id]) for case in cases.unseen]
    if isinstance(cases.criterion.scale, Numeric):
        return (
            f"Mean distance to the expert on {len(before)} unseen cases: {_mean(before):.2f} "
            f"before, {_mean(after):.2f} after."
        )
    return (
        f"Agreement with the expert on {len(before)} unseen cases: {before.count(0)} before, "
        f"{after.count(0)} after."
    )


def _error(cases: CaseFile, case: Case, judgment: Judgment) -> float:
    expert, judge = case.expert.value, judgment.value
    if isinstance(cases.criterion.scale, Numeric):
        return abs(float(expert) - float(judge))
    return float(expert != judge)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _wrap(text: str, indent: int) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=" " * indent)
