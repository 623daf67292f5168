"""A report as GitHub-flavoured Markdown, short enough for a comment on a pull request.

Texts of others stay text: they can't end a table's cell, a fence or a folded part, link to
anything, or call anybody.
"""

import re
from collections.abc import Iterator, Sequence
from html import escape

from memalign_graph.evaluation.report.cases import CaseView, Passage
from memalign_graph.evaluation.report.guidelines import GuidelineView
from memalign_graph.evaluation.report.report import Report
from memalign_graph.evaluation.report.tables import Cell, Table
from memalign_graph.evaluation.report.view import ReportView, view
from memalign_graph.evaluation.report.words import count, one_line

MOST_BYTES = 40_000
"""How long the text is at most; GitHub takes comments of up to 65,536 characters."""

_MOST_CASES = 5
_MOST_GUIDELINES = 12
_MOST_FLIPS = 5
_MOST_WARNINGS = 5
_MOST_JUDGES = 8
_MOST_ROWS = 30
_TEXT_CHARS = 700
_LINE_CHARS = 400
_CELL_CHARS = 80

# What Markdown reads anywhere in a line, and what it reads at the beginning of one.
_MARKS = re.compile(r"[\\`*_\[\]|~$]|^[-+=#](?=[-+=#\s]|$)")
_NUMBERED = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")
# What GitHub makes a mention, a reference or a link of, though to Markdown it is plain text.
_CALLS = re.compile(
    r"(?<=@)(?=\w)|(?<=#)(?=\d)|(?<=\bGH-)(?=\d)|(?<=:)(?=//)|(?<=\bwww)(?=\.)", re.IGNORECASE
)
_JOINER = "\u2060"
_TICKS = re.compile("`+")

_SIGNS = {"good": "🟢", "warn": "🟡", "bad": "🔴", "plain": "⚪"}


def render_markdown(report: Report) -> str:
    """Write a report as Markdown."""
    shown = view(report)
    written: list[str] = []
    room = MOST_BYTES - 200
    left_out = False
    # The most important stands first; what no longer fits is left out, never cut in the middle.
    for part in _parts(shown):
        size = len(part.encode()) + 2
        if size > room:
            left_out = True
            continue
        room -= size
        written.append(part)
    if left_out:
        written.append("_More than fits here: the HTML page and the JSON of this report have it._")
    return "\n\n".join(written) + "\n"


def inline(text: str, most: int = _LINE_CHARS) -> str:
    """Write a text of others in a line of Markdown."""
    line = _MARKS.sub(r"\\\g<0>", one_line(text, most))
    line = _NUMBERED.sub(r"\1\\\2", line)
    return escape(_CALLS.sub(_JOINER, line), quote=False)


def _parts(shown: ReportView) -> Iterator[str]:
    head = shown.headline
    yield f"## {_SIGNS[head.tone]} {inline(shown.name, 120)}: {head.verdict.lower()}"
    yield " ".join([f"**{inline(head.sentences[0])}**", *map(inline, head.sentences[1:])])
    if head.notes:
        yield "\n".join(f"- {_SIGNS[one.tone]} {inline(one.text, 600)}" for one in head.notes)
    if shown.warnings:
        yield _warnings(shown.warnings)
    yield _table(shown.metrics)
    yield f"<sub>{inline(shown.method)} Below each number its 95 % interval.</sub>"
    yield from _guidelines(shown.guidelines)
    yield from _cases(shown)
    yield from _flips(shown)
    yield from _folded_tables(shown)
    yield f"**Cost.** {inline(shown.cost_in_words, 600)}"
    yield _folded("What was asked of models", _table(shown.cost))


def _warnings(warnings: Sequence[str]) -> str:
    lines = [f"> - {inline(one)}" for one in warnings[:_MOST_WARNINGS]]
    if len(warnings) > _MOST_WARNINGS:
        lines.append(f"> - … and {len(warnings) - _MOST_WARNINGS:,} more")
    return "\n".join(["> **To know before reading on**", ">", *lines])


def _guidelines(guidelines: Sequence[GuidelineView]) -> Iterator[str]:
    if not guidelines:
        yield "**Guidelines.** None was learned."
        return
    yield f"### {count(len(guidelines), 'guideline')} learned"
    yield "\n".join(_guideline(one) for one in guidelines[:_MOST_GUIDELINES])
    if len(guidelines) > _MOST_GUIDELINES:
        yield f"… and {len(guidelines) - _MOST_GUIDELINES:,} more."


def _guideline(one: GuidelineView) -> str:
    worth = f"{_SIGNS[one.tone]} **{one.worth}.** " if one.worth else ""
    told = " ".join(part for part in (one.status, one.origin, one.credit) if part)
    return f"- {worth}{inline(one.text)}<br><sub>{inline(told, 600)}</sub>"


def _cases(shown: ReportView) -> Iterator[str]:
    title = "still wrong" if shown.after else "wrong"
    if not shown.wrong:
        yield f"**Cases {title}.** None."
    else:
        first = f", {shown.broken:,} of them right before learning" if shown.broken else ""
        yield f"### {count(len(shown.wrong), 'case')} {title}{first}"
    for one in [*shown.wrong[:_MOST_CASES], *shown.failed[:_MOST_CASES]]:
        yield _case(one)
    more = max(len(shown.wrong) - _MOST_CASES, 0) + max(len(shown.failed) - _MOST_CASES, 0)
    if more:
        yield f"… and {count(more, 'more case', 'more cases')}; the HTML page shows them."


def _case(one: CaseView) -> str:
    verdict = f"judge {one.verdict}" if one.verdict else "no verdict"
    before = " (it was right before)" if one.was_right and one.verdict else ""
    body = [_passage(passage) for passage in one.passages]
    body.append(_passage(Passage(f"The judge: {one.verdict or 'no verdict'}", one.rationale)))
    body += [
        _passage(Passage(f"{word.who}: {word.value}", word.words or "(gave no reason)"))
        for word in one.experts
    ]
    if one.guidelines:
        body.append(
            "\n".join(
                ["Guidelines in its prompt:", "", *(f"- {inline(g)}" for g in one.guidelines)]
            )
        )
    summary = f"Case {one.number}: experts {one.expected}, {verdict}{before}"
    return _folded(summary, "\n\n".join(body))


def _flips(shown: ReportView) -> Iterator[str]:
    if not shown.flips:
        return
    lines = []
    for one in shown.flips[:_MOST_FLIPS]:
        rules = "; ".join(f"“{inline(rule, 200)}”" for rule in one.guidelines)
        lines.append(
            f"- {one.step.capitalize()}: experts {inline(one.expected)}, judge "
            f"{inline(one.before)}, then {inline(one.after)}. {one.turned_by}"
            f"{f' {rules}' if rules else ''}<br><sub>{inline(one.passages[1].text, 160)}</sub>"
        )
    if len(shown.flips) > _MOST_FLIPS:
        lines.append(f"- … and {len(shown.flips) - _MOST_FLIPS:,} more")
    title = f"Steps back while learning: {count(len(shown.flips), 'case')}"
    yield _folded(title, "\n".join(lines))


def _folded_tables(shown: ReportView) -> Iterator[str]:
    if shown.curve:
        yield _folded(shown.curve.caption, _table(shown.curve))
    for one in shown.matrices:
        head = ["experts say ↓, judge says →", *one.labels]
        rows = [
            [Cell(label), *(Cell(f"{times:,}") for times, _ in row)]
            for label, row in zip(one.labels, one.rows, strict=True)
        ]
        yield _folded(f"Which answers are mixed up: {one.caption}", _table(Table("", head, rows)))
    if shown.mix_ups and not shown.matrices:
        yield _folded(shown.mix_ups.caption, _table(shown.mix_ups))
    if shown.differences:
        yield _folded(shown.differences.caption, _table(shown.differences))
    for table in shown.labels:
        yield _folded(f"Each answer by itself: {table.caption}", _table(table))


def _table(table: Table) -> str:
    columns = len(table.head[: _MOST_JUDGES + 1])
    lines = [
        [inline(name, _CELL_CHARS) for name in table.head[:columns]],
        [":---", *["---:"] * (columns - 1)],
    ]
    for row in table.rows[:_MOST_ROWS]:
        first = inline(row[0].text, _CELL_CHARS)
        lines.append([first, *map(_cell, row[1:columns])])
    if len(table.rows) > _MOST_ROWS:
        more = f"… and {len(table.rows) - _MOST_ROWS:,} more"
        lines.append([more, *[""] * (columns - 1)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(cell: Cell) -> str:
    small = f"<br><sub>{inline(cell.small, _CELL_CHARS)}</sub>" if cell.small else ""
    return f"{inline(cell.text, _CELL_CHARS)}{small}"


def _passage(passage: Passage) -> str:
    """Write a text in a fence that is longer than any in it, so that nothing in it ends it."""
    text = passage.text
    if len(text) > _TEXT_CHARS:
        left = len(text) - _TEXT_CHARS
        text = f"{text[:_TEXT_CHARS]}… [{count(left, 'more character')}]"
    longest = max((len(one) for one in _TICKS.findall(text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"**{inline(passage.title, _CELL_CHARS)}**\n\n{ticks}text\n{text}\n{ticks}"


def _folded(summary: str, body: str) -> str:
    # In a line of HTML Markdown's marks are plain text: only HTML's own have to go.
    line = escape(_CALLS.sub(_JOINER, one_line(summary, 200)), quote=False)
    return f"<details><summary>{line}</summary>\n\n{body}\n\n</details>"
