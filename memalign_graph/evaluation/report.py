"""A report as Markdown for a pull request, and that document as one offline HTML page.

Texts of others stay text: they can't end a table's cell, a fence or a folded part, link to
anything, call anybody, or run.
"""

import base64
import hashlib
import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from html import escape
from importlib.resources import files
from io import StringIO
from typing import Any

import numpy as np

from memalign_graph.agreement import agree
from memalign_graph.errors import needs_extra
from memalign_graph.evaluation.metrics import COVERAGE, Estimate, headline_metric, labels_of
from memalign_graph.evaluation.results import (
    CaseChange,
    EvaluatedCase,
    Flip,
    Report,
    ReportComparison,
)
from memalign_graph.scales import Numeric, Value

MOST_BYTES = 40_000
"""How long the Markdown is at most; GitHub takes comments of up to 65,536 characters."""

_MOST_CASES, _MOST_GUIDELINES, _MOST_ROWS, _TEXT_CHARS = 5, 20, 30, 700
_FEW = 20
_FINE = 100

# What Markdown reads anywhere in a line, and what it reads at the beginning of one.
_MARKS = re.compile(r"[\\`*_\[\]|~$]|^[-+=#](?=[-+=#\s]|$)")
_NUMBERED = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")
# What GitHub makes a mention, a reference or a link of, though to Markdown it is plain text.
_CALLS = re.compile(
    r"(?<=@)(?=\w)|(?<=#)(?=\d)|(?<=\bGH-)(?=\d)|(?<=:)(?=//)|(?<=\bwww)(?=\.)", re.IGNORECASE
)
_JOINER = "\u2060"
_UNFIT = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)
"""Control characters, halves of surrogate pairs, and what turns the direction of writing."""

_SIGNS = {"good": "🟢", "warn": "🟡", "bad": "🔴", "plain": "⚪"}
_TURNED = {
    "guideline": "Without this new guideline alone it would still be right:",
    "guidelines": "The new guidelines turned it together:",
    "removed": "It would be right with guidelines that were removed or reworded:",
    "episodes": "New episodes in the prompt turned it.",
}
_MATPLOTLIB = threading.Lock()


def count(number: int, noun: str) -> str:
    """Write how many there are."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def clean(text: str, most: int = 10_000) -> str:
    """Make a text of others fit to be shown."""
    kept = _UNFIT.sub("\ufffd", text[:most].replace("\r\n", "\n").replace("\r", "\n"))
    return kept if len(text) <= most else f"{kept}… [{len(text) - most:,} more characters]"


def inline(text: str, most: int = 400) -> str:
    """Write a text of others in a line of Markdown."""
    whole = " ".join(clean(text[: most * 10], most * 10).split())
    line = whole if len(whole) <= most else f"{whole[:most].rstrip()}…"
    line = _NUMBERED.sub(r"\1\\\2", _MARKS.sub(r"\\\g<0>", line))
    return escape(_CALLS.sub(_JOINER, line), quote=False)


def as_text(value: Any) -> str:
    """Write what an application was given, or answered."""
    return clean(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    )


def number(value: float | None, sign: str = "") -> str:
    """Write a number of a metric."""
    return "n/a" if value is None else f"{value:{sign},.{2 if abs(value) < _FINE else 0}f}"


def estimate(found: Estimate, sign: str = "") -> str:
    """Write a number with its interval."""
    if found.low is None or found.high is None:
        return number(found.value, sign)
    return f"{number(found.value, sign)} [{number(found.low, sign)}, {number(found.high, sign)}]"


class _Shown:
    """A report beside what its sentences are about."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.scale = report.criterion.scale
        self.main, self.first = report.judges[-1], report.judges[0]
        self.metric = headline_metric(self.scale)
        self.scores = report.of(self.main)
        self.found = report.metric(self.main, self.metric)
        self.numbers = {case.example.id: at for at, case in enumerate(report.cases, 1)}

    def value(self, value: Value | None) -> str:
        """Write a value of the scale."""
        if isinstance(value, float):
            return number(value)
        return "no verdict" if value is None else clean(self.scale.show(value), 200)

    def verdict(self) -> tuple[str, str, str]:
        """Say what learning changed: how good it is, in few words, and in a sentence."""
        compared = self.report.comparison(self.main, self.first)
        if compared is None:
            return "plain", "measured", ""
        difference = compared.differences[self.metric]
        if difference.value is None:
            return "warn", "not comparable", ""
        shown = estimate(difference, "+")
        if difference.value == 0 and difference.low in (0, None) and difference.high in (0, None):
            return "plain", "no change", f"It does as well as {self.first!r} on these cases."
        if difference.low is None:
            return "plain", "difference untested", f"Difference to {self.first!r}: {shown}."
        ahead = compared.is_ahead(self.metric)
        if ahead is None:
            text = f"The difference to {self.first!r}, {shown}, may be chance: try more cases."
            return "warn", "may be chance", text
        word = "better" if ahead else "worse"
        text = f"That is {word} than {self.first!r} by more than chance is likely to do: {shown}."
        return ("good" if ahead else "bad"), f"{word} than {self.first}", text

    def sentence(self) -> str:
        """Say how far the judge agrees."""
        cases = count(self.scores.cases, "unseen case")
        found = self.found
        if found.value is None:
            return f"{self.main}: no verdict that can be used on {len(self.report.cases):,} cases."
        before = self.report.metric(self.first, self.metric).value
        then = "" if before is None or self.first == self.main else f"; {self.first}: "
        if isinstance(self.scale, Numeric):
            then = then and f"{then}{number(before)}"
            return f"{self.main}: on average {estimate(found)} from the experts on {cases}{then}."
        right, all_ = round(found.value * self.scores.cases), self.scores.cases
        then = then and f"{then}{before:.0%}"
        between = f", {found.low:.0%} to {found.high:.0%}" if found.low != found.high else ""
        return (
            f"{self.main}: agrees with the experts on {right:,} of {all_:,} unseen cases "
            f"({found.value:.0%}{between}){then}."
        )

    def notes(self) -> Iterator[tuple[str, str]]:
        """Say what has to be known beside the headline."""
        report, cases = self.report, self.scores.cases
        for baseline in (scores.judge for scores in report.scores):
            compared = report.comparison(self.main, baseline)
            if baseline in report.judges or compared is None or baseline.endswith("verdict"):
                continue
            ahead, shown = compared.is_ahead(self.metric), compared.differences[self.metric]
            if shown.value is None or ahead:
                continue
            how = "worse" if ahead is False else "not clearly better"
            tone = "bad" if ahead is False else "warn"
            yield tone, f"It is {how} than the {baseline} baseline ({estimate(shown, '+')})."
        if self.scores.failed:
            yield "warn", f"It gave no verdict on {count(self.scores.failed, 'case')}."
        if 0 < cases < _FEW:
            yield "warn", f"{count(cases, 'case')} {'is' if cases == 1 else 'are'} few."
        right = report.metric(self.main, "agreement").value
        if right == 1 and cases >= _FEW:
            most = 1 - (1 - COVERAGE) ** (1 / cases)
            text = f"Right on all of {cases:,} cases: of new ones up to {most:.0%} may be wrong."
            yield "plain", text
        experts = report.experts
        if experts.examples and experts.alpha is not None:
            shared = count(experts.examples, "case")
            text = f"Krippendorff's alpha of the experts is {experts.alpha:.2f} on {shared}"
            yield "plain", f"{text} that several labelled; a judge can hardly agree more."

    def ranked(self) -> list[EvaluatedCase]:
        """Order cases: wrong ones first, among them those that the first judge has right."""

        def key(case: EvaluatedCase) -> tuple[int, int, float]:
            right = self.report.is_right(case, self.main)
            value = case.value_of(self.main)
            off = 0.0
            if isinstance(self.scale, Numeric) and value is not None:
                off = -abs(float(value) - float(case.expected))
            first = self.report.is_right(case, self.first) is True
            return (2 if right else 1 if right is None else 0), -int(first), off

        return sorted(self.report.cases, key=key)


def render_markdown(report: Report) -> str:
    """Write a report as Markdown; what no longer fits is left out, never cut in the middle."""
    written: list[str] = []
    room, left_out = MOST_BYTES - 200, False
    for part in (*_head(report), *_cases(report), *_body(report)):
        size = len(part.encode(errors="replace")) + 2
        if size > room:
            left_out = True
            continue
        room -= size
        written.append(part)
    if left_out:
        written.append("_More than fits here: the HTML page and the JSON of this report have it._")
    return "\n\n".join(written) + "\n"


def _head(report: Report) -> Iterator[str]:
    shown = _Shown(report)
    tone, verdict, sentence = shown.verdict()
    yield f"## {_SIGNS[tone]} {inline(report.criterion.name, 120)}: {inline(verdict)}"
    yield f"**{inline(shown.sentence())}** {inline(sentence)}".rstrip()
    notes = [f"- {_SIGNS[tone]} {inline(text)}" for tone, text in shown.notes()]
    notes += [f"- {_SIGNS['warn']} {inline(text)}" for text in report.warnings[:_MOST_CASES]]
    if notes:
        yield "\n".join(notes)
    metrics = list(dict.fromkeys(name for scores in report.scores for name in scores.metrics))
    rows = [
        [
            scores.judge,
            f"{scores.cases:,}",
            *(estimate(scores.metrics.get(m, Estimate())) for m in metrics),
        ]
        for scores in report.scores
    ]
    yield _table(["judge", "cases", *metrics], rows)
    settings = report.settings
    how = "cases set aside" if settings.folds == 1 else f"{settings.folds} folds"
    yield (
        f"<sub>{how} by {inline(settings.group_by)}; [ ] is the 95 % interval over items, "
        f"{settings.resamples:,} bootstrap resamples.</sub>"
    )


def _body(report: Report) -> Iterator[str]:
    yield _guidelines(report)
    yield _costs(report)
    flips = [
        (step.feedback, flip)
        for step in (report.curve.steps if report.curve else ())
        for flip in step.flips
    ]
    if flips:
        lines = [f"- After {size:,}: {_flip(report, flip)}" for size, flip in flips[:_MOST_ROWS]]
        yield _folded(f"Steps back while learning: {count(len(flips), 'case')}", "\n".join(lines))
    if report.curve:
        name = headline_metric(report.criterion.scale)
        rows = [
            [
                f"{step.feedback:,}",
                f"{step.guidelines:,}",
                estimate(step.unseen.metrics[name]),
                estimate(step.seen.metrics[name]) if step.seen else "",
                f"{len(step.flips):,}",
            ]
            for step in report.curve.steps
        ]
        head = ["feedback", "guidelines", f"{name}, unseen", f"{name}, seen", "flips"]
        yield _folded("Learning curve", _table(head, rows))
    rows = [
        [f"{pair.judge} - {pair.against}", name, estimate(difference, "+")]
        for pair in report.comparisons
        for name, difference in pair.differences.items()
        if name in (headline_metric(report.criterion.scale), "kappa", "ccc")
    ]
    yield _folded("Paired differences", _table(["judges", "metric", "difference"], rows))
    main = report.of(report.judges[-1])
    if main.confusion:
        names = [row.label for row in main.labels]
        rows = [[n, *map(str, row)] for n, row in zip(names, main.confusion, strict=True)]
        head = ["experts ↓ judge →", *names]
        yield _folded(f"Confusion matrix: {main.judge}", _table(head, rows))
        rows = [
            [row.label, *map(estimate, (row.precision, row.recall, row.f1)), f"{row.support:,}"]
            for row in main.labels
        ]
        head = ["label", "precision", "recall", "F1", "cases"]
        yield _folded(f"By label: {main.judge}", _table(head, rows))
    yield _authors(report)
    rows = [
        [name, json.dumps(options, default=str)] for name, options in report.settings.judges.items()
    ]
    settings = report.settings
    rows += [
        [name, str(getattr(settings, name))]
        for name in ("version", "created_at", "data", "feedback", "seed")
    ]
    yield _folded("Settings", _table(["", ""], rows, most=1_000))


def _guidelines(report: Report) -> str:
    if not report.guidelines:
        return "**Guidelines.** None was learned."
    credit = {row.guideline.id: row for row in report.credit}
    sources = {episode.id: episode for episode in report.sources}
    lines = [f"### {count(len(report.guidelines), 'guideline')} learned"]
    for guideline in report.guidelines[:_MOST_GUIDELINES]:
        told = [f"from {count(len(guideline.episode_ids), 'comment')}"]
        row = credit.get(guideline.id)
        if row is not None:
            effect = "▲" * row.helped + "▼" * row.harmed
            told.append(f"{row.worth} on {count(row.shown_for, 'case')} {effect}".rstrip())
        said = [sources[key].rationale for key in guideline.episode_ids if key in sources]
        told += [f"“{text}”" for text in said[:2] if text]
        lines.append(f"- {inline(guideline.text)}<br><sub>{inline(' · '.join(told), 600)}</sub>")
    if len(report.guidelines) > _MOST_GUIDELINES:
        lines.append(f"- … and {len(report.guidelines) - _MOST_GUIDELINES:,} more")
    return "\n".join([lines[0], "", *lines[1:]])


def _costs(report: Report) -> str:
    rows = []
    for row in report.usage:
        calls = row.chat_calls + row.embedding_calls
        tokens = f"{row.input_tokens:,} / {row.output_tokens:,}"
        what = [row.judge, f"{row.stage}: {row.purpose}"]
        rows.append([*what, f"{calls:,}", f"{row.cached_calls:,}", tokens, f"{row.seconds:,.1f}"])
    calls = sum(row.chat_calls for row in report.usage)
    embeds = sum(row.embedding_calls for row in report.usage)
    cached = sum(row.cached_calls for row in report.usage)
    seconds = sum(row.seconds for row in report.usage)
    head = ["judge", "purpose", "calls", "cached", "tokens in / out", "seconds"]
    title = (
        f"Cost: {count(calls, 'chat call')}, {count(embeds, 'embedding call')}, {cached:,} "
        f"from the cache, {seconds:,.0f} s of models"
    )
    return _folded(title, _table(head, rows))


def _authors(report: Report) -> str:
    """Tell by expert how often each judge says what that expert does."""
    scale = report.criterion.scale
    tallies: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for case in report.cases:
        for expert in case.experts:
            for name in report.judges:
                value = case.value_of(name)
                if value is not None and expert.value is not None:
                    author = expert.author or "anonymous"
                    tallies[author, name].append(agree(scale, value, expert.value))
    rows = [
        [author, name, f"{sum(right):,} of {len(right):,}"]
        for (author, name), right in sorted(tallies.items())
    ]
    return _folded("By author", _table(["author", "judge", "agrees on"], rows))


def _cases(report: Report) -> Iterator[str]:
    shown = _Shown(report)
    wrong = [case for case in shown.ranked() if not report.is_right(case, shown.main)]
    yield f"### {count(len(wrong), 'case')} wrong" if wrong else "**Cases wrong.** None."
    for case in wrong[:_MOST_CASES]:
        passages = [
            ("Input", as_text(case.example.inputs)),
            ("Output", as_text(case.example.outputs)),
        ]
        judgment = case.judgments.get(shown.main)
        verdict = shown.value(case.value_of(shown.main))
        why = judgment.rationale if judgment else case.failures.get(shown.main, "")
        passages.append((f"{shown.main}: {verdict}", why))
        passages += [
            (f"{expert.author or 'expert'}: {shown.value(expert.value)}", expert.comment or "")
            for expert in case.experts
        ]
        parts = [_passage(title, text) for title, text in passages]
        rules = report.guidelines_for(case, shown.main)
        if rules:
            parts.append("\n".join(f"- {inline(guideline.text)}" for guideline in rules))
        at = shown.numbers[case.example.id]
        title = f"Case {at}: experts {shown.value(case.expected)}, judge {verdict}"
        yield _folded(title, "\n\n".join(parts))
    if len(wrong) > _MOST_CASES:
        yield f"… and {len(wrong) - _MOST_CASES:,} more; the HTML page has all cases."


def _flip(report: Report, flip: Flip) -> str:
    shown = _Shown(report)
    rules = "; ".join(f"“{inline(guideline.text, 200)}”" for guideline in flip.guidelines)
    values = [inline(shown.value(one)) for one in (flip.expected, flip.before, flip.after)]
    return (
        f"experts {values[0]}, judge {values[1]}, then {values[2]}. {_TURNED[flip.turned_by]} "
        f"{rules}<br><sub>{inline(as_text(flip.example.outputs), 160)}</sub>"
    )


def comparison_markdown(compared: ReportComparison) -> str:
    """Write what became of the cases that two reports share."""

    def line(change: CaseChange) -> str:
        new = "; ".join(f"“{inline(text, 200)}”" for text in change.guidelines)
        gone = "; ".join(f"“{inline(text, 200)}”" for text in change.removed)
        by = "".join([f" New: {new}." if new else "", f" Gone: {gone}." if gone else ""])
        return (
            f"- {inline(as_text(change.example.outputs), 160)}: experts "
            f"{inline(str(change.expected))}, judge {inline(str(change.before))}, then "
            f"{inline(str(change.after))}.{by}"
        )

    of = f"worse of {count(compared.cases, 'case')}"
    changed = f"{len(compared.better):,} better, {len(compared.worse):,} {of}"
    parts = [f"## {inline(compared.judge)}: {changed}"]
    for title, changes in (("Worse", compared.worse), ("Better", compared.better)):
        if changes:
            parts.append("\n".join([f"### {title}", "", *map(line, changes)]))
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], most: int = 80) -> str:
    lines = [list(head), [":---", *["---:"] * (len(head) - 1)], *rows[:_MOST_ROWS]]
    if len(rows) > _MOST_ROWS:
        more = f"… and {len(rows) - _MOST_ROWS:,} more"
        lines.append([more, *[""] * (len(head) - 1)])
    cells = [
        [cell if at == 1 else inline(cell, most) for cell in line] for at, line in enumerate(lines)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _passage(title: str, text: str) -> str:
    """Write a text in a fence that is longer than any in it, so that nothing in it ends it."""
    text = clean(text, _TEXT_CHARS)
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"**{inline(title, 80)}**\n\n{ticks}text\n{text}\n{ticks}"


def _folded(summary: str, body: str) -> str:
    # In a line of HTML Markdown's marks are plain text: only HTML's own have to go.
    line = escape(_CALLS.sub(_JOINER, " ".join(clean(summary, 200).split())), quote=False)
    return f"<details><summary>{line}</summary>\n\n{body}\n\n</details>"


def render_html(report: Report) -> str:
    """Write the Markdown as a page, with plots and every case."""
    with needs_extra("evaluation", "an HTML report"):
        import jinja2
        from markdown_it import MarkdownIt
    folder = files(__package__ or "memalign_graph.evaluation").joinpath("templates")
    style, script, page = (
        folder.joinpath(name).read_text(encoding="utf-8")
        for name in ("report.css", "report.js", "report.html.jinja")
    )
    render: Callable[[str], str] = MarkdownIt("commonmark", {"html": True}).enable("table").render
    shown = _Shown(report)
    known = {
        expert.episode_id: shown.numbers[case.example.id]
        for case in report.cases
        for expert in case.experts
    }
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    text = environment.from_string(page).render(
        report=report,
        shown=shown,
        cases=shown.ranked(),
        retrieved=lambda ids: dict.fromkeys(known.get(key, f"{key[:8]}…") for key in ids),
        as_text=as_text,
        clean=clean,
        plots=_plots(report),
        head=jinja2.utils.markupsafe.Markup(render("\n\n".join(_head(report)))),
        body=jinja2.utils.markupsafe.Markup(render("\n\n".join(_body(report)))),
        style=jinja2.utils.markupsafe.Markup(style),
        script=jinja2.utils.markupsafe.Markup(script),
        hashes=[_hash(style), _hash(script)],
    )
    return text.encode(errors="replace").decode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _plots(report: Report) -> dict[str, str]:
    """Draw what there is to draw, as data URIs by title."""
    with needs_extra("evaluation", "plots"):
        import matplotlib as mpl
        from matplotlib.figure import Figure
    drawings = {
        "Learning curve": _draw_curve if report.curve else None,
        "Experts and judge": _draw_confusion
        if labels_of(report.criterion.scale)
        else _draw_scatter,
        "Calibration": _draw_reliability if report.of(report.judges[-1]).reliability else None,
        "Risk by coverage": _draw_risk if report.of(report.judges[-1]).reliability else None,
    }
    drawn = {}
    settings: Any = {**mpl.rcParamsDefault, "svg.hashsalt": "memalign", "backend": "agg"}
    # Settings of matplotlib are the process's: a thread at a time, and they are put back.
    with _MATPLOTLIB, mpl.rc_context():
        mpl.rcParams.update({k: v for k, v in settings.items() if k not in ("backend", "timezone")})
        for title, draw in drawings.items():
            if draw is None:
                continue
            figure = Figure(figsize=(4.6, 3.4), layout="constrained")
            draw(report, figure.subplots())
            written = StringIO()
            figure.savefig(written, format="svg", metadata={"Date": None})
            encoded = base64.b64encode(written.getvalue().encode()).decode()
            drawn[title] = f"data:image/svg+xml;base64,{encoded}"
    return drawn


def _draw_curve(report: Report, axes: Any) -> None:
    name, steps = (
        headline_metric(report.criterion.scale),
        report.curve.steps if report.curve else [],
    )
    for what in ("unseen", "seen"):
        points = [
            (step.feedback, scores.metrics[name])
            for step in steps
            if (scores := getattr(step, what)) and scores.metrics[name].value is not None
        ]
        if points:
            sizes = [size for size, _ in points]
            lines = axes.plot(sizes, [one.value for _, one in points], marker="o", label=what)
            low, high = ([getattr(one, end) for _, one in points] for end in ("low", "high"))
            if None not in low:
                axes.fill_between(sizes, low, high, alpha=0.15, color=lines[0].get_color())
    axes.set(xlabel="pieces of feedback", ylabel=name)
    axes.legend()


def _draw_confusion(report: Report, axes: Any) -> None:
    from sklearn.metrics import ConfusionMatrixDisplay

    scores = report.of(report.judges[-1])
    labels = [clean(row.label, 20).replace("$", r"\$") for row in scores.labels]
    display = ConfusionMatrixDisplay(np.array(scores.confusion), display_labels=labels)
    display.plot(ax=axes, colorbar=False, xticks_rotation=45)
    axes.set(xlabel="judge", ylabel="experts")


def _draw_scatter(report: Report, axes: Any) -> None:
    pairs = [
        (float(case.expected), float(value))
        for case in report.cases
        if (value := case.value_of(report.judges[-1])) is not None
    ]
    axes.scatter([x for x, _ in pairs], [y for _, y in pairs], alpha=0.5)
    axes.axline((0, 0), slope=1, color="gray", linewidth=1)
    axes.set(xlabel="experts", ylabel="judge")


def _draw_reliability(report: Report, axes: Any) -> None:
    bins = report.of(report.judges[-1]).reliability
    axes.plot([0, 1], [0, 1], "k:", label="perfectly calibrated")
    axes.plot([b.confidence for b in bins], [b.accuracy for b in bins], "s-", label="judge")
    axes.set(xlabel="confidence", ylabel="share that agrees with the experts")
    axes.legend()


def _draw_risk(report: Report, axes: Any) -> None:
    main = report.judges[-1]
    sure = [
        (said.confidence, not report.is_right(case, main))
        for case in report.cases
        if (said := case.predictions.get(main)) and said.confidence is not None
    ]
    wrong, risks = 0, []
    for at, (_, is_wrong) in enumerate(sorted(sure, key=lambda one: -one[0]), 1):
        wrong += is_wrong
        risks.append(wrong / at)
    axes.step([(at + 1) / len(risks) for at in range(len(risks))], risks, where="post")
    axes.set(xlabel="share judged, surest first", ylabel="share wrong", ylim=(0, None))
