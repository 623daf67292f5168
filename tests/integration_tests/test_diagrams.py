"""The diagrams of docs/ are those of the graphs, as `draw_mermaid()` writes them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langgraph.graph import END, START, MessagesState, StateGraph

from memalign_graph import (
    Criterion,
    QualityGateMiddleware,
    add_quality_gate,
    create_alignment_graph,
    create_feedback_graph,
    create_judge_graph,
    create_panel_graph,
    create_review_graph,
)

ROOT = Path(__file__).parents[2]
CRITERION = Criterion(name="support_tone", instructions="Is the reply appropriate?")


def gated() -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("writer", lambda state: state)
    builder.add_node("person", lambda state: state)
    builder.add_edge(START, "writer")
    builder.add_edge("person", END)
    add_quality_gate(builder, CRITERION, after="writer", revise="writer", escalate="person")
    return builder


GRAPHS: dict[str, Callable[[], Any]] = {
    "judge": lambda: create_judge_graph(CRITERION).compile(),
    "review": lambda: create_review_graph(CRITERION).compile(),
    "feedback": lambda: create_feedback_graph(CRITERION).compile(),
    "align": lambda: create_alignment_graph(CRITERION, conflicts="ask", guard="replay").compile(),
    "panel": lambda: create_panel_graph([CRITERION]).compile(),
    "gate": lambda: gated().compile(),
    "agent": lambda: create_agent(
        FakeListChatModel(responses=[]), middleware=[QualityGateMiddleware(CRITERION)]
    ),
}

PAGES = {
    "docs/agents.md": ["agent"],
    "docs/alignment.md": ["align"],
    "docs/gate.md": ["gate"],
    "docs/graphs.md": ["review", "judge"],
    "docs/panel.md": ["panel"],
    "docs/replies.md": ["feedback"],
}
"""The diagrams of each page, in order."""


@pytest.mark.parametrize("page", PAGES)
def test_diagram_matches_its_graph(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    diagrams = re.findall(r"^```mermaid\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    wanted = [GRAPHS[name]().get_graph().draw_mermaid() for name in PAGES[page]]
    assert diagrams == wanted, "copy the second list's text into the page"
