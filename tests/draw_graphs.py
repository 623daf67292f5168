"""The pictures of the graphs in the README, drawn anew: `python -m tests.draw_graphs`.

A picture stands between `<!-- graph: NAME -->` and `<!-- end -->`, as Mermaid text.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langgraph.graph import START, MessagesState, StateGraph

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

README = Path(__file__).parents[1] / "README.md"
_CRITERION = Criterion(name="support_tone", instructions="Is the reply appropriate?")
_BLOCK = re.compile(r"(<!-- graph: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_SETTINGS = re.compile(r"^---\n.*?---\n", re.DOTALL)


def _gated() -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("writer", lambda state: state)
    builder.add_node("person", lambda state: state)
    builder.add_edge(START, "writer")
    add_quality_gate(builder, _CRITERION, after="writer", revise="writer", escalate="person")
    return builder.compile()


def _agent() -> Any:
    return create_agent(
        FakeListChatModel(responses=[]), middleware=[QualityGateMiddleware(_CRITERION)]
    )


GRAPHS: dict[str, Callable[[], Any]] = {
    "judge": lambda: create_judge_graph(_CRITERION).compile(),
    "review": lambda: create_review_graph(_CRITERION).compile(),
    "feedback": lambda: create_feedback_graph(_CRITERION).compile(),
    "align": lambda: create_alignment_graph(_CRITERION, conflicts="ask", guard="replay").compile(),
    "panel": lambda: create_panel_graph([_CRITERION]).compile(),
    "gate": _gated,
    "agent": _agent,
}
"""What is drawn, by the name in the README."""


def mermaid(name: str) -> str:
    """Draw a graph as Mermaid text."""
    drawn: str = GRAPHS[name]().get_graph().draw_mermaid()
    return _SETTINGS.sub("", drawn).strip().replace("\t", "  ")


def with_pictures(text: str) -> str:
    """Return a text with its pictures drawn anew."""
    return _BLOCK.sub(
        lambda found: f"{found[1]}```mermaid\n{mermaid(found[2])}\n```\n{found[3]}", text
    )


def main() -> None:
    README.write_text(with_pictures(README.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"drew {', '.join(GRAPHS)}\n")


if __name__ == "__main__":
    main()
