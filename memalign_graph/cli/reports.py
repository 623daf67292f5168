"""What commands tell people, as text. Pure functions; `Output` makes the text safe to show."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from memalign_graph.alignment.merging import Conflict
from memalign_graph.alignment.report import AlignmentReport, GuidelineChange, Replay
from memalign_graph.cli.output import one_line
from memalign_graph.scales import Scale

WIDTH = 96
"""How wide text is set, in columns."""

_DECIDED = "decided by "
_SHORT_CHARS = 8
_FEW = 10
"""How many lines of one kind are shown where a count says the rest."""


class Judged(Protocol):
    """What came of judging one example."""

    @property
    def case(self) -> Any:
        """The example, with its `number` and `id`."""

    @property
    def judgment(self) -> dict[str, Any] | None:
        """The judgment."""

    @property
    def error(self) -> str | None:
        """Why there is none."""


def count(number: int, one: str, many: str | None = None) -> str:
    """Count things in words."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def item(text: str, mark: str = "- ", indent: int = 0) -> str:
    """Set a paragraph as an item of a list."""
    first = " " * indent + mark
    return textwrap.fill(
        one_line(text),
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """Set rows as columns, the last as wide as it is."""
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    widths[-1] = min(widths[-1], WIDTH)
    marks = tuple("-" * width for width in widths)
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [lines[0], marks, *lines[1:]]
    )


def alignment_text(report: AlignmentReport, places: Sequence[str], scale: Scale) -> str:
    """Tell what an alignment did."""
    parts = [
        _feedback(report, places),
        _judged(report),
        _agreement(report, scale),
        _changes(report),
        _conflicts(report.conflicts),
        _replay(report.replay, scale) if report.replay else "",
        "\n".join(item(one, "note: ") for one in report.warnings),
        _cost(report),
    ]
    return "\n\n".join(part for part in parts if part)


def judgments_text(verdicts: Sequence[Judged]) -> str:
    """Set judgments as a table."""
    has_ids = any(one.case.id for one in verdicts)
    given = [one.judgment for one in verdicts if one.judgment is not None]
    extra = {
        name: cell
        for name, cell in (("confidence", _confidence), ("decided by", _decided_by))
        if any(cell(judgment) for judgment in given)
    }
    rows = []
    for one in verdicts:
        value, why = (
            ("-", f"not judged: {one.error}")
            if one.judgment is None
            else (_value(one.judgment["value"]), one.judgment["rationale"])
        )
        names = [str(one.case.number), *([one_line(one.case.id or "", 24)] if has_ids else [])]
        more = [cell(one.judgment or {}) or "-" for cell in extra.values()]
        rows.append([*names, one_line(value, 24), *more, one_line(why, WIDTH)])
    header = ["line", *(["id"] if has_ids else []), "value", *extra, "rationale"]
    return table(rows, header)


def judgment_text(judgment: Mapping[str, Any]) -> str:
    """Tell one judgment in full."""
    guidelines = judgment["guideline_ids"]
    sure, evidence = _confidence(judgment), judgment.get("evidence")
    lines = [
        f"value      {_value(judgment['value'])}",
        item(judgment["rationale"], "rationale  "),
        item(
            f"{count(len(guidelines), 'guideline')}, "
            f"{count(len(judgment['episode_ids']), 'episode')}",
            "judged by  ",
        ),
    ]
    if sure:
        lines.append(f"confidence {sure}")
    if evidence:
        says = _value(evidence["verdict"])
        lines.append(
            item(f"{evidence['decided_by']}; the judge says {says}. {evidence['reason']}", _DECIDED)
        )
    if judgment["broken_guideline_ids"]:
        broken = ", ".join(key[:_SHORT_CHARS] for key in judgment["broken_guideline_ids"])
        lines.append(item(broken, "breaks     "))
    lines += [item(one, "note       ") for one in judgment["warnings"]]
    return "\n".join(lines)


def _confidence(judgment: Mapping[str, Any]) -> str:
    """Tell how sure the judge is, by what, and whether that is calibrated; empty if unknown."""
    confidence = judgment.get("confidence")
    if confidence is None:
        return ""
    cases = judgment.get("calibrated_on")
    how = "raw" if cases is None else f"calibrated on {count(cases, 'case')}"
    return f"{confidence:.2f} by {judgment.get('confidence_source')}, {how}"


def _decided_by(judgment: Mapping[str, Any]) -> str:
    return str((judgment.get("evidence") or {}).get("decided_by", ""))


def _feedback(report: AlignmentReport, places: Sequence[str]) -> str:
    told = report.feedback
    first = (
        f"feedback: {told.new} new, {told.changed} changed, {told.unchanged} known already, "
        f"{told.rejected} not taken"
    )
    rejected = [
        item(f"{place}: {one.reason.removeprefix('example.')}", "  not taken: ")
        for place, one in zip(places, report.rejected, strict=True)
    ]
    return "\n".join([first, *rejected])


def _judged(report: AlignmentReport) -> str:
    if not report.judged_cases:
        return ""
    return f"judged: {count(report.judged_cases, 'case')}, as if no expert had spoken of it yet"


def _agreement(report: AlignmentReport, scale: Scale) -> str:
    found = report.agreement
    if not found.examples:
        return ""
    alpha = "not defined" if found.alpha is None else f"{found.alpha:.2f}"
    first = (
        f"experts: several on {count(found.examples, 'case')}, of which "
        f"{len(found.disagreements)} in dispute; Krippendorff's alpha {alpha}"
    )
    lines = [first]
    for one in found.disagreements[:_FEW]:
        values = ", ".join(
            f"{given.author or 'anonymous'} {scale.show(given.value)}" for given in one.given
        )
        counts = scale.show(one.majority)
        lines.append(item(f"{one.example_id[:_SHORT_CHARS]}: {values}; {counts} counts"))
    return _with_rest(lines, len(found.disagreements))


def _changes(report: AlignmentReport) -> str:
    changes = report.guidelines
    groups = (("added", changes.added), ("revised", changes.revised), ("retired", changes.retired))
    lines = [f"guidelines: {', '.join(f'{len(group)} {name}' for name, group in groups)}"]
    for name, group in groups:
        lines += [_change(name, one) for one in group]
    return "\n".join(lines)


def _change(name: str, one: GuidelineChange) -> str:
    sources = count(len(one.episode_ids), "comment")
    lines = [item(f"{one.text} (from {sources})", f"  {name}: ")]
    if one.before:
        lines.append(item(one.before, "before: ", 4))
    if one.reason:
        lines.append(item(one.reason, "because: ", 4))
    return "\n".join(lines)


def _conflicts(conflicts: Sequence[Conflict]) -> str:
    if not conflicts:
        return ""
    lines = [f"{count(len(conflicts), 'contradiction')}, in which the newer word stays:"]
    for one in conflicts:
        sides = (one.first, one.second)
        stays, goes = sides if one.newer == "first" else sides[::-1]
        lines += [item(stays.text, "stays: ", 2), item(goes.text, "goes:  ", 2)]
    return "\n".join(lines)


def _replay(replay: Replay, scale: Scale) -> str:
    first = (
        f"replay: {count(replay.cases, 'case')} judged again: {replay.agreed_before} agreed "
        f"before, of which {replay.agree_after} do now; {replay.newly_agree} newly agree"
    )
    broken = [
        item(
            f"{case.outcome}, since it turned {case.example_id[:_SHORT_CHARS]} from "
            f"{scale.show(case.expected)} to {scale.show(case.got)}: {case.guideline}"
        )
        for case in replay.broken
    ]
    return "\n".join([first, *broken])


def _cost(report: AlignmentReport) -> str:
    cost = report.cost
    before, after = report.memory_version_before, report.memory_version_after
    version = (
        f"memory unchanged at version {after[:_SHORT_CHARS]}"
        if before == after
        else f"memory from version {before[:_SHORT_CHARS]} to {after[:_SHORT_CHARS]}"
    )
    return (
        f"cost: {count(cost.chat_calls, 'chat call')}, {cost.input_tokens:,} tokens in, "
        f"{cost.output_tokens:,} out, {count(cost.texts_embedded, 'text')} embedded, "
        f"{cost.seconds:.1f} s\n{version}"
    )


def _with_rest(lines: list[str], total: int) -> str:
    more = total - _FEW
    return "\n".join([*lines, f"- and {more} more"] if more > 0 else lines)


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
