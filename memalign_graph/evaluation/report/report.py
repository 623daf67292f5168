"""`Report`: everything an evaluation found, to be shown, saved, or read by a machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from memalign_graph.errors import InvalidInputError
from memalign_graph.evaluation.credit import GuidelineCredit
from memalign_graph.evaluation.learning import LearningCurve
from memalign_graph.evaluation.results import Evaluation
from memalign_graph.evaluation.scores import Estimate
from memalign_graph.types import Episode, Guideline


class Report(BaseModel):
    """Everything an evaluation found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    evaluation: Evaluation
    """The judges on unseen cases, before and after learning."""

    learning_curve: LearningCurve | None = None
    """How the judge gets better with feedback, where that was asked for."""

    guidelines: list[Guideline] = []
    """What is learned from all the feedback together."""

    sources: list[Episode] = []
    """The episodes that these guidelines rest on."""

    credit: list[GuidelineCredit] = []
    """What each of them does to verdicts, where that was asked for."""

    def metric(self, judge: str, name: str) -> Estimate:
        """Return one number; see `Evaluation.metric`.

        Args:
            judge: The judge: `base`, `aligned`, `constant` or `nearest`.
            name: The metric: `agreement`, `kappa`, `mae`, `ccc` and others.

        Returns:
            The estimate, with its interval; without a value where this scale has no such metric.

        Raises:
            KeyError: If the judge was not measured.
        """
        return self.evaluation.metric(judge, name)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        return self.model_dump(mode="json")

    def to_markdown(self) -> str:
        """Return the report as Markdown for a pull request, headline first."""
        from memalign_graph.evaluation.report.markdown import render_markdown

        return render_markdown(self)

    def to_html(self) -> str:
        """Return the report as one HTML page that needs no network.

        Raises:
            ImportError: If the extra `evaluation` is not installed.
        """
        from memalign_graph.evaluation.report.html import render_html

        return render_html(self)

    def save(self, path: str | Path) -> Path:
        """Write the report to a file, its kind by the file's ending.

        Args:
            path: A file that ends in `.html`, `.md` or `.json`; folders are made.

        Returns:
            The file.

        Raises:
            InvalidInputError: If the ending is another.
            ImportError: If the extra `evaluation` is not installed.
        """
        file = Path(path)
        kinds: dict[str, Callable[[], str]] = {
            ".html": self.to_html,
            ".md": self.to_markdown,
            ".json": lambda: self.model_dump_json(indent=1),
        }
        if file.suffix.lower() not in kinds:
            raise InvalidInputError(
                f"path: {file.name!r} does not tell what to write: end it in .html, .md or .json."
            )
        text = kinds[file.suffix.lower()]()
        file.parent.mkdir(parents=True, exist_ok=True)
        # A page is read by browsers, and text cut in the middle of a pair can't be written.
        file.write_text(text, encoding="utf-8", errors="replace")
        return file
