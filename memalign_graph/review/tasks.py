"""A review task: a case that an expert is to answer, as the page lists it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from memalign_graph.errors import visible
from memalign_graph.interrupts import REASONS
from memalign_graph.prompts.fences import headline
from memalign_graph.review.blocks import tool_call
from memalign_graph.review.forms import CasePayload
from memalign_graph.transcript import goal_tools_answer, transcripts_in

_HEADLINE_CHARS = 120


@dataclass(frozen=True)
class Reviewer:
    """A user of the page."""

    name: str = ""
    verified: bool = False
    may_roll_back: bool = False
    client: Any = None
    """A client of the Agent Server with the reviewer's rights; None without a server."""
    account: str = ""
    """The reviewer's identity on the server, which may differ from the name."""


@dataclass
class ReviewTask:
    """A case that an expert is to answer."""

    id: str
    criterion: str  # the names of its criteria
    inputs: str  # their first words
    title: str  # the first words of the outputs
    asked_at: datetime
    reasons: list[str]
    judgment_ids: frozenset[str]
    case: CasePayload = field(default_factory=dict)  # only in an open task
    ran_unasked: bool = False  # a tool call that ran without a question
    can_wait: bool = False  # no agent waits for it, and it was not drawn at random
    held_by: str | None = None
    skipped: bool = False


def make_task(task_id: str, case: CasePayload, asked_at: datetime | None = None) -> ReviewTask:
    judgments, example = case["judgments"].values(), case["example"]
    codes = [code for each in judgments for code in (each.get("review") or {}).get("reasons", [])]
    # The page shows the judge's verdict only if the expert wants to see it.
    shown = [REASONS[code] for code in dict.fromkeys(codes) if code != "judged_wrong"]
    return ReviewTask(
        id=task_id,
        criterion=", ".join(case["criteria"]),
        inputs=_goal(example["inputs"]),
        title=title_of(example["outputs"]),
        asked_at=asked_at or datetime.now(UTC),
        reasons=shown,
        judgment_ids=frozenset(judgment["id"] for judgment in judgments),
        ran_unasked=bool(tool_call(example["outputs"])) and any(map(_passed, judgments)),
    )


def _passed(judgment: Mapping[str, Any]) -> bool:
    """Return whether a judge let a call run without a question."""
    review = judgment.get("review") or {"asks": True}
    return judgment["value"] is True and not review["asks"]


def title_of(outputs: Any) -> str:
    """Return the first words of the outputs, or a tool call with its arguments."""
    if call := tool_call(outputs):
        arguments = (
            f"{key}={json.dumps(part, ensure_ascii=False)}" for key, part in call["args"].items()
        )
        outputs = f"{call['name']}({', '.join(arguments)})"
    return visible(headline(outputs, _HEADLINE_CHARS)) or "(empty)"


def _goal(inputs: Any) -> str:
    """Return the first words of the inputs; for a conversation, of its last question."""
    questions = goal_tools_answer(transcripts_in(inputs).get("", []))[0]
    return visible(headline(questions[-1] if questions else inputs, _HEADLINE_CHARS))
