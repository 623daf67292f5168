"""Does the judge agree with the experts? A report on existing feedback.

Needs the extras `evaluation` and `local`. Models' answers are kept in a file next to the report, so
a second run calls no model. For files of your own, use `memalign evaluate`.
"""

import sys
from pathlib import Path
from typing import Any

from memalign_graph import Criterion
from memalign_graph.evaluation import evaluate
from memalign_graph.models import models_from_environment

CRITERION = Criterion(
    name="support_tone", instructions="Is the reply appropriate for the customer?"
)
SORRY = "Something went wrong for the customer: the reply must say sorry before anything else."
TROUBLES = ("order never came", "cup arrived broken", "bill is wrong", "parcel was left outside")
QUESTIONS = ("When do you open?", "Do you ship to Norway?")


def sample_feedback() -> list[dict[str, Any]]:
    """Return an expert's feedback on replies with and without an apology."""
    feedback: list[dict[str, Any]] = []
    for trouble in TROUBLES:
        request = f"My {trouble}."
        cold, warm = f"Tell us more about the {trouble.split()[0]}.", "Sorry! We send a new one."
        feedback.append({"inputs": request, "outputs": cold, "value": False, "rationale": SORRY})
        feedback.append({"inputs": request, "outputs": warm, "value": True})
    feedback += [
        {"inputs": question, "outputs": "Yes, see the site.", "value": True}
        for question in QUESTIONS
    ]
    return feedback


def main() -> None:
    """Measure the judge before and after it learned, and write the report."""
    report_file = Path(sys.argv[1] if len(sys.argv) > 1 else "evaluation/report.html")
    model, embeddings = models_from_environment()
    report = evaluate(
        CRITERION,
        sample_feedback(),
        folds=3,
        group_by="inputs",  # two replies to one question go into one fold
        cache=report_file.with_suffix(".cache.db"),
        model=model,
        embeddings=embeddings,
    )
    for judge in ("majority", "kNN", "evidence", "base", "aligned"):
        agreement = report.metric(judge, "agreement")
        low, high = agreement.low, agreement.high
        print(f"{judge:8}  agreement {agreement.value:.2f} ({low:.2f} to {high:.2f})")
    print("The report:", report.save(report_file))


if __name__ == "__main__":
    main()
