"""The report of an evaluation: its records, as Markdown, and as one offline HTML page.

Untrusted text is escaped: it can't end a table cell, a fence or a folded part, make a link, mention
anyone, or run.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from html import escape
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field

from memalign_graph.agreement import Agreement, values_agree
from memalign_graph.errors import InvalidInputError, require_extra, write_errors
from memalign_graph.evaluation.dataset import BASELINES
from memalign_graph.evaluation.metrics import METRICS, Comparison, Estimate, JudgeScores, Prediction
from memalign_graph.memory.jsonl import write_file
from memalign_graph.scales import Numeric, Value
from memalign_graph.tracing import Usage
from memalign_graph.types import Criterion, Episode, Example, FrozenModel, Guideline, Judgment

BASE, ALIGNED = "base", "aligned"
"""The judges that `evaluate` measures by default: without memory, and after learning."""

MAX_CHARS = 65_000
"""Maximum length of the Markdown; GitHub accepts comments of up to 65,536 characters."""

_JUDGED = ("rationale", "guideline_ids", "episode_ids")
_DETAILS = "<!-- details -->"
_FEW = 20
_MAX_WARNINGS = 5
_FINE = 100

# Characters that Markdown reads anywhere in a line; and places where it or GitHub makes lists,
# headings, mentions, issue numbers or links.
_MARKS = re.compile(r"[\\`*_\[\]|~$]")
_AUTOLINKS = re.compile(
    r"^(?=[-+=#]+(?:\s|$)|\d{1,9}[.)](?:\s|$))|(?<=@)(?=\w)|(?<=#)(?=\d)|(?<=\bGH-)(?=\d)|(?<=:)(?=//)|(?<=\bwww)(?=\.)",
    re.IGNORECASE,
)
_JOINER = "\u2060"
_UNFIT = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)
"""Control characters, unpaired surrogates, and marks that change the direction of text."""


class ExpertLabel(FrozenModel):
    """One expert's feedback on a case."""

    author: str | None
    value: Value | None
    rationale: str | None
    episode_id: str


class EvaluatedCase(FrozenModel):
    """A case that every judge judged without having learned from it."""

    example: Example
    group: str  # the item it belongs to
    fold: int
    expected: Value  # the experts' consensus
    experts: list[ExpertLabel]  # oldest first
    predictions: dict[str, Prediction]  # by judge or baseline
    judgments: dict[str, Judgment]  # by judge; those that gave no usable answer are missing
    failures: dict[str, str]  # why, by judge

    def value_of(self, judge: str) -> Value | None:
        """Return the value by a judge or baseline; None if it gave none."""
        return self.predictions.get(judge, Prediction()).value


class FoldMemory(FrozenModel):
    """A judge's memory when it judged a fold."""

    fold: int
    judge: str
    episodes: int
    pending: int = 0  # episodes that could not be distilled
    guidelines: list[Guideline]
    warnings: list[str]  # of the alignment


class UsageRow(Usage):
    """Calls by one judge for one purpose, with their tokens."""

    judge: str
    stage: str  # `learn`, `judge`, `curve` or `report`
    purpose: str  # as in `UsageLedger`, or `embed`
    cached_calls: int = 0  # answers from the cache; not in `chat_calls`
    cached_input_tokens: int = 0  # of these; not in `input_tokens`
    seconds: float = 0.0  # spent in chat models


class ChangedCase(FrozenModel):
    """A case whose verdict changed."""

    example: Example
    expected: Value
    before: Value
    after: Value
    rationale: str  # of the new verdict
    guidelines: list[Guideline]  # new ones, which may have changed it
    removed: list[Guideline] = Field(default_factory=list)  # retired ones, which may have, too


class LearningStep(FrozenModel, extra="ignore"):  # steps of 0.2 have `flips`
    """The judge after some of the feedback."""

    feedback: int
    guidelines: int
    unseen: JudgeScores  # on the cases that were set aside
    seen: JudgeScores | None  # on the cases it has learned from; None at the first step


class LearningCurve(FrozenModel):
    """A judge's scores as its memory grows."""

    criterion: Criterion
    steps: list[LearningStep]  # from no feedback to all of it
    test_cases: int
    usage: list[UsageRow]


class RunSettings(FrozenModel):
    """What identifies an evaluation, and repeats it."""

    version: str  # of this package
    created_at: datetime
    data: str  # a digest of criterion, feedback and test cases
    feedback: int
    folds: int  # 1 with `test`
    group_by: str
    seed: int
    resamples: int
    judges: dict[str, dict[str, Any]]  # each judge's model, embeddings, k and other options


class ReportComparison(FrozenModel):
    """The cases that two reports share and that changed between them."""

    judge: str
    cases: int
    better: list[ChangedCase]
    worse: list[ChangedCase]


class Report(FrozenModel, extra="ignore"):  # reports of 0.2 have a list of `credit`
    """The result of an evaluation."""

    criterion: Criterion
    settings: RunSettings
    judges: list[str]
    """The others are compared with the first; the report is about the last."""
    cases: list[EvaluatedCase]
    scores: list[JudgeScores]  # the baselines come first
    comparisons: list[Comparison]  # on the same draws of cases
    memories: list[FoldMemory]
    experts: Agreement  # of the experts among themselves
    usage: list[UsageRow]  # all calls, by judge and purpose
    warnings: list[str]  # what a reader of the numbers has to know
    guidelines: list[Guideline]  # learned from all the feedback together
    sources: list[Episode]  # the guidelines' source episodes
    curve: LearningCurve | None = None

    def of(self, judge: str) -> JudgeScores:
        """Return the scores of a judge or a baseline."""
        by_judge = {scores.judge: scores for scores in self.scores}
        if judge not in by_judge:
            raise KeyError(f"{judge!r} was not measured: there is {list(by_judge)}")
        return by_judge[judge]

    def metric(self, judge: str, name: str) -> Estimate:
        """Return one metric of a judge or a baseline, with its interval."""
        if name not in METRICS:
            raise KeyError(f"{name!r} is not a metric: there is {list(METRICS)}")
        return self.of(judge).metrics.get(name, Estimate())

    def comparison(self, judge: str, against: str) -> Comparison | None:
        """Return the comparison of one judge with another; None if they were not compared."""
        pairs = {(pair.judge, pair.against): pair for pair in self.comparisons}
        return pairs.get((judge, against))

    def is_right(self, case: EvaluatedCase, judge: str) -> bool | None:
        """Return whether a judge is right on a case; None if it gave no verdict."""
        value = case.value_of(judge)
        return None if value is None else values_agree(self.criterion.scale, value, case.expected)

    def wrong(self, judge: str) -> list[EvaluatedCase]:
        """Return the cases on which a judge disagrees with the experts."""
        return [case for case in self.cases if self.is_right(case, judge) is False]

    def guidelines_for(self, case: EvaluatedCase, judge: str) -> list[Guideline]:
        """Return the guidelines in a judge's prompt on a case."""
        ids = case.judgments[judge].guideline_ids if judge in case.judgments else []
        by_id = {
            guideline.id: guideline
            for memory in self.memories
            if (memory.fold, memory.judge) == (case.fold, judge)
            for guideline in memory.guidelines
        }
        return [by_id[key] for key in ids if key in by_id]

    def compare(self, before: "Report", judge: str | None = None) -> ReportComparison:
        """Compare with an earlier report: which cases got better or worse, by which guidelines.

        Args:
            before: The earlier report.
            judge: The judge to compare in both; by default the last of each.

        Raises:
            InvalidInputError: If the reports share no case, or are of different criteria.
            KeyError: If a report did not measure the judge.
        """
        ours, theirs = (
            (report.criterion.name, report.criterion.scale) for report in (self, before)
        )
        if ours != theirs:
            raise InvalidInputError(
                f"before: the report is of the criterion {theirs[0]!r}, or of another scale: give "
                f"one of {ours[0]!r} with the same scale."
            )
        now, then = judge or self.judges[-1], judge or before.judges[-1]
        self.of(now)
        before.of(then)
        earlier = {case.example.id: case for case in before.cases}
        shared = [(earlier[c.example.id], c) for c in self.cases if c.example.id in earlier]
        if not shared:
            raise InvalidInputError("before: the reports share no case: give one of the same data.")
        changes = ReportComparison(judge=now, cases=len(shared), better=[], worse=[])
        for old, new in shared:
            was, is_now, is_right = old.value_of(then), new.value_of(now), self.is_right(new, now)
            if was is None or is_now is None:
                continue
            # By the present labels, so that a corrected label does not count as a changed verdict.
            if values_agree(self.criterion.scale, was, new.expected) == is_right:
                continue
            rules, old_rules = self.guidelines_for(new, now), before.guidelines_for(old, then)
            texts, old_texts = {rule.text for rule in rules}, {rule.text for rule in old_rules}
            change = ChangedCase(
                example=new.example,
                expected=new.expected,
                before=was,
                after=is_now,
                rationale=new.judgments[now].rationale if now in new.judgments else "",
                guidelines=[rule for rule in rules if rule.text not in old_texts],
                removed=[rule for rule in old_rules if rule.text not in texts],
            )
            (changes.better if is_right else changes.worse).append(change)
        return changes

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each case and judge or baseline."""
        with require_extra("evaluation", "to_pandas"):
            import pandas as pd
        return pd.DataFrame(
            {
                **case.example.to_json(),
                "example_id": case.example.id,
                **case.model_dump(include={"group", "fold", "expected"}),
                "authors": [expert.author for expert in case.experts],
                "judge": name,
                **case.predictions.get(name, Prediction()).model_dump(),
                "right": self.is_right(case, name),
                "failure": case.failures.get(name),
                **(judged.model_dump(include={*_JUDGED}) if judged else dict.fromkeys(_JUDGED)),
            }
            for case, name in product(self.cases, (scores.judge for scores in self.scores))
            for judged in [case.judgments.get(name)]
        )

    def summary(self) -> str:
        """Return the beginning of the Markdown: headline, warnings, and the table of judges."""
        return self._document()[0]

    def to_markdown(self) -> str:
        """Return the report as Markdown for a pull request, headline first."""
        summary, details = self._document()
        if len(summary) + len(details) > MAX_CHARS:
            details = "_Too long for a comment: see the HTML page or the JSON for details._\n"
        return f"{summary}\n{details}"

    def to_html(self) -> str:
        """Return the report as one HTML page that needs no network, with every case."""
        with require_extra("evaluation", "an HTML report"):
            from markdown_it import MarkdownIt
        markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
        style = _render("page.css").strip()
        return _render(
            "report.html.jinja",
            name=self.criterion.name,
            body=markdown.render("\n".join(self._document(for_page=True))),
            style=style,
            style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        )

    def _document(self, *, for_page: bool = False) -> tuple[str, str]:
        """Return the Markdown's summary and details; the HTML page's details have all cases."""
        text = _render("report.md.jinja", report=self, shown=_ReportText(self), for_page=for_page)
        summary, _, details = re.sub(r"\n{3,}", "\n\n", text).partition(_DETAILS)
        return f"{summary.strip()}\n", f"{details.strip()}\n"

    def save(self, path: str | Path) -> Path:
        """Write the report to a file in the format of its ending: .html, .md or .json."""
        file = Path(path)
        formats: dict[str, Callable[[], str]] = {
            ".html": self.to_html,
            ".md": self.to_markdown,
            ".json": partial(self.model_dump_json, indent=1),
        }
        if file.suffix.lower() not in formats:
            raise InvalidInputError(
                f"path: {file.name!r} has no known ending. Use .html, .md or .json."
            )
        text = formats[file.suffix.lower()]()
        with write_errors(path):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, text)
        return file


def clean(text: str, max_chars: int = 10_000) -> str:
    """Remove from untrusted text what can't be shown, and shorten it."""
    kept = _UNFIT.sub("\ufffd", text[:max_chars].replace("\r\n", "\n").replace("\r", "\n"))
    left_out = len(text) - max_chars
    return kept if left_out <= 0 else f"{kept}… [{left_out:,} more characters]"


def inline(text: str, max_chars: int = 300, marks: str = r"\\\g<0>") -> str:
    """Escape untrusted text as one line of Markdown."""
    line = " ".join(clean(text[: max_chars * 10], max_chars * 10).split())
    line = line if len(line) <= max_chars else f"{line[:max_chars].rstrip()}…"
    return escape(_MARKS.sub(marks, _AUTOLINKS.sub(_JOINER, line)), quote=False)


def _fenced(text: str, title: str, max_chars: int) -> str:
    """Fence untrusted text; the fence is longer than any in the text, so nothing there ends it."""
    text = clean(text, max_chars)
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"**{inline(title, 80)}**\n\n{ticks}text\n{text}\n{ticks}\n"


def _text(value: Any) -> str:
    plain = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    return clean(plain)


def _number(value: float | None, sign: str = "") -> str:
    return "n/a" if value is None else f"{value:{sign},.{2 if abs(value) < _FINE else 0}f}"


def _estimate(estimate: Estimate | None, sign: str = "") -> str:
    """Format a number with its interval."""
    estimate = estimate or Estimate()
    value, low, high = (_number(number, sign) for _, number in estimate)
    return value if estimate.low is None else f"{value} [{low}, {high}]"


def _render(template: str, **names: Any) -> str:
    with require_extra("evaluation", "a report"):
        import jinja2
    environment = jinja2.Environment(
        autoescape=template.endswith(".html.jinja"),  # Markdown is escaped by `inline`
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        loader=jinja2.PackageLoader("memalign_graph.evaluation"),
    )
    filters = (inline, clean, _text, _estimate, _fenced)
    environment.filters |= {filter_.__name__.lstrip("_"): filter_ for filter_ in filters}
    return environment.get_template(template).render(**names)


class _ReportText:
    """Texts and tables of a report, for its templates."""

    def __init__(self, report: Report) -> None:
        self.report, self.scale = report, report.criterion.scale
        self.main, self.first = report.judges[-1], report.judges[0]
        self.metric = "mae" if isinstance(self.scale, Numeric) else "agreement"
        self.scores = report.of(self.main)
        self.metrics = [*dict.fromkeys(name for row in report.scores for name in row.metrics)]
        self.numbers = {case.example.id: at for at, case in enumerate(report.cases, 1)}
        # Wrong ones first, among them those that the first judge has right.
        order = (False, None, True)
        self.ranked = sorted(
            report.cases,
            key=lambda case: (
                order.index(report.is_right(case, self.main)),
                not report.is_right(case, self.first),
            ),
        )
        self.wrong = [case for case in self.ranked if report.is_right(case, self.main) is False]

    def value(self, value: Value | None) -> str:
        """Format a value of the scale."""
        if isinstance(value, float):
            return _number(value)
        return "no verdict" if value is None else clean(self.scale.show(value), 200)

    def compare_with(self, other: str) -> tuple[str, str, str]:
        """Return a sign, a word and the difference to another judge; empty if there is none."""
        compared = self.report.comparison(self.main, other)
        if compared is None or compared.differences[self.metric].value is None:
            return "⚪", "", ""
        words = {True: ("🟢", "better"), False: ("🔴", "worse"), None: ("🟡", "")}
        difference = _estimate(compared.differences[self.metric], "+")
        return *words[compared.is_ahead(self.metric)], difference

    def headline(self) -> tuple[str, str]:
        """Return what learning changed in a few words, and in a sentence."""
        after, before = (self.report.metric(name, self.metric) for name in (self.main, self.first))
        sign, word, difference = self.compare_with(self.first)
        text = f"{self.main}: {self.metric} {_estimate(after)}"
        text += f" on {self.scores.cases:,} unseen cases"
        if not difference:
            return f"{sign} measured", f"{text}."
        text += f"; {self.first}: {_estimate(before)}; difference {difference}"
        if after.value == before.value:
            return f"{sign} no change", f"{text}."
        if not word:
            return f"{sign} may be chance", f"{text}, which may be chance."
        return f"{sign} {word} than {self.first}", f"{text}, more than chance is likely to do."

    def notes(self) -> Iterator[str]:
        """Yield what a reader has to know with the headline."""
        for baseline in BASELINES:
            sign, word, difference = self.compare_with(baseline)
            if difference and word != "better":
                how = word or "not clearly better"
                yield f"{sign} It is {how} than the {baseline} baseline ({difference})."
        if self.scores.cases < _FEW:
            yield f"🟡 There are few cases: {self.scores.cases}."
        experts = self.report.experts
        if experts.alpha is not None:
            text = f"Krippendorff's alpha of the experts is {experts.alpha:.2f}"
            text += f" on the {experts.examples:,} cases that several of them labeled"
            yield f"⚪ {text}: a judge can hardly agree more."
        warnings = self.report.warnings
        warnings = sorted(warnings, key=lambda text: not text.startswith(f"{self.main}: "))
        yield from (f"🟡 {warning}" for warning in warnings[:_MAX_WARNINGS])
        if more := len(warnings[_MAX_WARNINGS:]):
            yield f"🟡 More warnings in Report.warnings: {more}."

    def comments(self, guideline: Guideline) -> list[str]:
        """Return the first two comments that a guideline was distilled from."""
        comments = {episode.id: episode.rationale for episode in self.report.sources}
        return [text for key in guideline.episode_ids if (text := comments.get(key))][:2]
