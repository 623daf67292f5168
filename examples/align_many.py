"""Learn from many comments at once, with a progress bar: three experts, some of whom disagree.

Run it twice on one file (`python examples/align_many.py memory.sqlite`): the second run has no new
feedback and calls no model.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from tqdm import tqdm

from memalign_graph import Criterion, create_alignment_graph
from memalign_graph.local import open_local_store
from memalign_graph.models import models_from_environment

CRITERION = Criterion(
    name="support_tone", instructions="Is the reply appropriate for the customer?"
)
SORRY = "A reply about something lost or broken must say sorry before anything else."
PHONE = "Never send a customer to the phone line: give the answer in the reply."
FEEDBACK = [
    {
        "inputs": inputs,
        "outputs": outputs,
        "value": comment is None,
        "rationale": comment,
        "author": author,
    }
    for inputs, outputs, author, comment in (
        ("My order never came.", "Check the tracking page.", "ann", SORRY),
        ("My order never came.", "Check the tracking page.", "bob", "Too cold."),
        ("The cup arrived broken.", "Send us a photo.", "ann", SORRY),
        ("Where is my invoice?", "Call us between 9 and 5.", "cem", PHONE),
        ("How do I change my address?", "Please call our hotline.", "cem", PHONE),
        ("How do I change my address?", "Please call our hotline.", "bob", None),
        ("How do I reset my password?", "Click on 'Forgot it?'.", "ann", None),
    )
]
"""Feedback without a comment says that the reply is right."""


def align(path: Path) -> dict[str, Any]:
    """Align the memory in a file, with a progress bar."""
    model, embeddings = models_from_environment()
    builder = create_alignment_graph(CRITERION, model=model, embeddings=embeddings)
    report: dict[str, Any] = {}
    with open_local_store(path) as store, tqdm(unit="step", file=sys.stdout) as bar:
        graph = builder.compile(store=store)
        for mode, part in graph.stream({"feedback": FEEDBACK}, stream_mode=["custom", "values"]):
            if mode == "values" and isinstance(part, dict):
                report = part.get("report", report)
            elif isinstance(part, dict) and part["type"] == "alignment_progress":
                bar.set_description(part["stage"])
                bar.total, bar.n = part["of"], part["done"]
                bar.refresh()
    return report


def main(path: Path) -> None:
    """Align, and print the report."""
    report = align(path)
    print("feedback:", report["feedback"])
    agreement = report["agreement"]
    print(
        f"experts: they disagree on {len(agreement['disagreements'])} of {agreement['examples']} "
        f"case(s) that several of them judged, Krippendorff's alpha {agreement['alpha']}"
    )
    for action, changes in report["guidelines"].items():
        for change in changes:
            print(f"{action}: {change['text']} (from {len(change['episode_ids'])} comment(s))")
    cost = report["cost"]
    print(f"{cost['chat_calls']} chat call(s), {cost['texts_embedded']} text(s) embedded")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else f"{folder}/memory.sqlite"))
