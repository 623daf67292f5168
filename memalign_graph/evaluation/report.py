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
from itertools import product
from typing import Any

import numpy as np

from memalign_graph.agreement import agree
from memalign_graph.errors import needs_extra
from memalign_graph.evaluation.metrics import COVERAGE, Estimate, headline_metric, labels_of
from memalign_graph.evaluation.results import (
    CaseChange,
    EvaluatedCase,
    LearningCurve,
    Report,
    ReportComparison,
)
from memalign_graph.scales import Numeric, Value
from memalign_graph.types import Guideline

MOST_BYTES = 40_000
"""How long the Markdown is at most; GitHub takes comments of up to 65,536 characters."""

_TEXT_CHARS = 700
_CUT = "\0"  # parts of the document: no text of others holds one
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
        self.metrics = list(dict.fromkeys(name for row in report.scores for name in row.metrics))
        self.credit = {row.guideline.id: row for row in report.credit}
        self.sources = {episode.id: episode for episode in report.sources}
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

    def wrong(self) -> list[EvaluatedCase]:
        """Return the cases that the judge has wrong, or gave no verdict on."""
        return [case for case in self.ranked() if not self.report.is_right(case, self.main)]

    def said(self, guideline: Guideline) -> list[str]:
        """Return the comments that a guideline rests on, the first two."""
        known = [self.sources[key] for key in guideline.episode_ids if key in self.sources]
        return [episode.rationale for episode in known if episode.rationale][:2]

    def cost(self) -> str:
        """Add up what was asked of models."""
        usage = self.report.usage
        chats = count(sum(row.chat_calls for row in usage), "chat call")
        embeddings = count(sum(row.embedding_calls for row in usage), "embedding call")
        cached, seconds = sum(r.cached_calls for r in usage), sum(r.seconds for r in usage)
        rest = f"{cached:,} from the cache, {seconds:,.0f} s of models"
        return f"Cost: {chats}, {embeddings}, {rest}"

    def by_author(self) -> list[tuple[tuple[str, str], list[bool]]]:
        """Tell by expert and judge on which cases the judge says what that expert does."""
        tallies: dict[tuple[str, str], list[bool]] = defaultdict(list)
        for case, name in product(self.report.cases, self.report.judges):
            value = case.value_of(name)
            for expert in case.experts:
                if value is not None and expert.value is not None:
                    right = agree(self.scale, value, expert.value)
                    tallies[expert.author or "anonymous", name].append(right)
        return sorted(tallies.items())


def render_markdown(report: Report) -> str:
    """Write a report as Markdown; what no longer fits is left out, never cut in the middle."""
    written: list[str] = []
    room, left_out = MOST_BYTES - 200, False
    for part in _parts(report):
        size = len(part.encode(errors="replace")) + 2
        left_out |= size > room
        if size <= room:
            room -= size
            written.append(part)
    if left_out:
        written.append("_More than fits here: the HTML page and the JSON of this report have it._")
    return "\n\n".join(written) + "\n"


def render_summary(report: Report) -> str:
    """Write what a report says first: headline, warnings, and the table of judges."""
    parts = _parts(report, cases=False)
    end = next(at for at, part in enumerate(parts, 1) if part.startswith("<sub>"))
    return "\n\n".join(parts[:end]) + "\n"


def _parts(report: Report, *, cases: bool = True) -> list[str]:
    text = _render("report.md.jinja", report, cases=cases, cut=_CUT, signs=_SIGNS, turned=_TURNED)
    return [part.strip() for part in text.split(_CUT) if part.strip()]


def _render(template: str, report: Report, **more: Any) -> str:
    with needs_extra("evaluation", "a report"):
        import jinja2
    environment = jinja2.Environment(
        autoescape=template.endswith(".html.jinja"),  # Markdown is escaped by `inline`
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.PackageLoader("memalign_graph.evaluation"),
    )
    environment.filters |= {
        "line": inline,
        "text": as_text,
        "count": count,
        "estimate": estimate,
        "of": lambda name, metrics, sign="": estimate(metrics.get(name, Estimate()), sign),
        "passage": _passage,
        "summary": _summary,
        "clean": clean,
    }
    page = environment.get_template(template)
    return page.render(report=report, shown=_Shown(report), **more)


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


def _passage(text: str, title: str) -> str:
    """Write a text in a fence that is longer than any in it, so that nothing in it ends it."""
    text = clean(text, _TEXT_CHARS)
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"**{inline(title, 80)}**\n\n{ticks}text\n{text}\n{ticks}"


def _summary(text: str) -> str:
    """Write a line of HTML: Markdown's marks are plain text there."""
    return escape(_CALLS.sub(_JOINER, " ".join(clean(text, 200).split())), quote=False)


def render_html(report: Report) -> str:
    """Write the Markdown as a page, with plots and every case."""
    with needs_extra("evaluation", "an HTML report"):
        from markdown_it import MarkdownIt
    folder = files("memalign_graph.evaluation").joinpath("templates")
    style, script = (
        folder.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js")
    )
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    known = {
        expert.episode_id: at for at, case in enumerate(report.cases, 1) for expert in case.experts
    }
    text = _render(
        "report.html.jinja",
        report,
        retrieved=lambda ids: dict.fromkeys(known.get(key, f"{key[:8]}…") for key in ids),
        plots=_plots(report),
        document=markdown.render("\n\n".join(_parts(report, cases=False))),
        style=style,
        script=script,
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
    main = report.judges[-1]
    sure = [
        (said.confidence, bool(report.is_right(case, main)))
        for case in report.cases
        if (said := case.predictions.get(main)) and said.confidence is not None
    ]
    finite = labels_of(report.criterion.scale)
    drawings: dict[str, Callable[[Any], object]] = {
        "Experts and judge": lambda axes: (_draw_confusion if finite else _draw_scatter)(
            report, axes
        )
    }
    if curve := report.curve:
        drawings["Learning curve"] = lambda axes: _draw_curve(curve, axes)
    if sure:
        drawings["Calibration"] = lambda axes: _draw_calibration(sure, axes)
        drawings["Risk by coverage"] = lambda axes: _draw_risk(sure, axes)
    drawn = {}
    unset = ("backend", "backend_fallback", "timezone", "interactive", "toolbar")
    plain = {name: value for name, value in mpl.rcParamsDefault.items() if name not in unset}
    # Settings of matplotlib are the process's: a thread at a time, and they are put back.
    with _MATPLOTLIB, mpl.rc_context({**plain, "svg.hashsalt": "memalign"}):
        for title, draw in drawings.items():
            figure = Figure(figsize=(4.6, 3.4), layout="constrained")
            draw(figure.subplots())
            written = StringIO()
            figure.savefig(written, format="svg", metadata={"Date": None})
            encoded = base64.b64encode(written.getvalue().encode()).decode()
            drawn[title] = f"data:image/svg+xml;base64,{encoded}"
    return drawn


def _draw_curve(curve: LearningCurve, axes: Any) -> None:
    name = headline_metric(curve.criterion.scale)
    for what in ("unseen", "seen"):
        steps = [(step.feedback, getattr(step, what)) for step in curve.steps]
        points = [(size, scores.metrics[name]) for size, scores in steps if scores]
        known = [(size, one) for size, one in points if one.value is not None]
        # A skewed interval may leave out the value.
        below = [0 if one.low is None else max(one.value - one.low, 0) for _, one in known]
        above = [0 if one.high is None else max(one.high - one.value, 0) for _, one in known]
        sizes, values = [size for size, _ in known], [one.value for _, one in known]
        axes.errorbar(sizes, values, yerr=[below, above], marker="o", capsize=3, label=what)
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


def _draw_calibration(sure: Sequence[tuple[float, bool]], axes: Any) -> None:
    from sklearn.calibration import CalibrationDisplay

    right, confidence = [right for _, right in sure], [confidence for confidence, _ in sure]
    CalibrationDisplay.from_predictions([*right], confidence, n_bins=10, pos_label=True, ax=axes)
    axes.set(xlabel="confidence", ylabel="share that agrees with the experts")


def _draw_risk(sure: Sequence[tuple[float, bool]], axes: Any) -> None:
    wrong = np.array([not right for _, right in sorted(sure, reverse=True)])
    ranks = np.arange(1, len(wrong) + 1)
    axes.step(ranks / len(wrong), np.cumsum(wrong) / ranks, where="post")
    axes.set(xlabel="share judged, surest first", ylabel="share wrong", ylim=(0, None))
