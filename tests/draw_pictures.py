"""The pictures of the documentation, drawn anew: `python -m tests.draw_pictures`.

The graphs stand in a column, in the order they run in: what skips a node goes by on the right, what
goes back on the left. Dashed lines are taken where the state says so.
"""

import io
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import Any

import uvicorn
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables.graph import Edge
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from rich.console import Console
from rich.text import Text

from memalign_graph import (
    Criterion,
    Judge,
    JudgeMemory,
    QualityGateMiddleware,
    add_quality_gate,
    create_alignment_graph,
    create_feedback_graph,
    create_judge_graph,
    create_panel_graph,
    create_review_graph,
)
from memalign_graph.review import Desk, create_review_app
from tests.loopback import LoopbackServer, Rule

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
_CRITERION = Criterion(name="support_tone", instructions="Is the reply appropriate?")


def _gated(write: Any = lambda state: state, **models: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("writer", write)
    builder.add_node("person", lambda state: state)
    builder.add_edge(START, "writer")
    builder.add_edge("person", END)
    add_quality_gate(
        builder, _CRITERION, after="writer", revise="writer", escalate="person", **models
    )
    return builder


GRAPHS: dict[str, Callable[[], Any]] = {
    "judge": lambda: create_judge_graph(_CRITERION).compile(),
    "review": lambda: create_review_graph(_CRITERION).compile(),
    "feedback": lambda: create_feedback_graph(_CRITERION).compile(),
    "align": lambda: create_alignment_graph(_CRITERION, conflicts="ask", guard="replay").compile(),
    "panel": lambda: create_panel_graph([_CRITERION]).compile(),
    "gate": lambda: _gated().compile(),
    "agent": lambda: create_agent(
        FakeListChatModel(responses=[]), middleware=[QualityGateMiddleware(_CRITERION)]
    ),
}
"""What is drawn, by the name of its file."""

_WIDE, _HIGH, _STEP, _LEFT = 240, 36, 66, 160
_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 {high}" width="620" height="{high}" \
font-family="system-ui, sans-serif" font-size="15" role="img">
<title>{title}</title>
<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" \
orient="auto"><path d="M0 0 10 5 0 10z" fill="#6b6f85"/></marker></defs>
<rect width="620" height="{high}" rx="10" fill="#ffffff"/>
"""


def graph_picture(name: str) -> str:
    """Draw a graph as SVG."""
    graph = GRAPHS[name]().get_graph()
    order = _in_order(graph.edges)
    head = _HEAD.format(high=_STEP * len(order) + 14, title=f"The graph: {name}")
    lines, words = zip(*(_line(edge, order) for edge in graph.edges), strict=True)
    boxes = [_box(node, 20 + place * _STEP) for place, node in enumerate(order)]
    return "".join([head, *lines, *boxes, *words]) + "</svg>\n"


def _box(node: str, top: int) -> str:
    fill, round_by = ("#bfb6fc", 18) if node in (START, END) else ("#f2f0ff", 6)
    return (
        f'<rect x="{_LEFT}" y="{top}" width="{_WIDE}" height="{_HIGH}" rx="{round_by}" '
        f'fill="{fill}" stroke="#6b6f85"/>\n'
        f'<text x="{_LEFT + _WIDE // 2}" y="{top + 23}" text-anchor="middle" '
        f'fill="#1c1c28">{escape(node.strip("_"))}</text>\n'
    )


def _in_order(edges: list[Edge]) -> list[str]:
    """Put the nodes in the order they run in, whatever leads back."""
    done: list[str] = []
    seen: set[str] = set()

    def visit(node: str) -> None:
        seen.add(node)
        for end in sorted((edge.target for edge in edges if edge.source == node), reverse=True):
            if end not in seen:
                visit(end)
        done.append(node)

    visit(START)
    return done[::-1]


def _line(edge: Edge, order: list[str]) -> tuple[str, str]:
    """Draw a line, and its words."""
    start, end = order.index(edge.source), order.index(edge.target)
    middle, dashes = _LEFT + _WIDE // 2, ' stroke-dasharray="5 4"' if edge.conditional else ""
    top, bottom = 20 + start * _STEP, 20 + end * _STEP
    if end == start + 1:
        path, x, y, anchor = f"M{middle} {top + _HIGH}V{bottom}", middle + 8, bottom - 10, "start"
    else:
        # The further it goes, the wider its bow.
        forth = end > start
        side = _LEFT + _WIDE if forth else _LEFT
        bow = side + (1 if forth else -1) * (40 + 34 * abs(end - start))
        top, bottom = top + (24 if forth else 12), bottom + (12 if forth else 24)
        path = f"M{side} {top}C{bow} {top} {bow} {bottom} {side} {bottom}"
        x, y = (side + 3 * bow) // 4 + (6 if forth else -6), (top + bottom) // 2
        anchor = "start" if forth else "end"
    line = f'<path d="{path}" fill="none" stroke="#6b6f85"{dashes} marker-end="url(#arrow)"/>\n'
    label = escape(str(edge.data or ""))
    words = (
        f'<text x="{x}" y="{y}" font-size="13" text-anchor="{anchor}" fill="#6b6f85" '
        'stroke="#ffffff" stroke-width="5" paint-order="stroke">'
    )
    return line, f"{words}{label}</text>\n" if label else ""


_DRAFTS = ("Check the tracking page.", "We are so sorry. A new one leaves today.")


def _write(state: Any) -> Any:
    drafts = sum(isinstance(message, AIMessage) for message in state["messages"])
    return {"messages": [AIMessage(_DRAFTS[drafts])]}


def events_picture() -> str:
    """Draw the events of a gate that sends one draft back, as a terminal shows them."""
    with LoopbackServer() as server:
        cold = Rule(
            when=lambda request: _DRAFTS[1] not in request.text,
            value=False,
            rationale="It sends the customer away without a word of regret.",
        )
        server.rules.append(cold)
        builder = _gated(_write, model=server.chat_model(), embeddings=server.embedder())
        graph = builder.compile(store=InMemoryStore())
        given = {"messages": [("human", "My order never came.")]}
        events = list(graph.stream(given, stream_mode="custom"))
    console = Console(record=True, width=90, file=io.StringIO())
    colours = {"judging": "dim", "revise": "yellow", "accepted": "green"}
    for event in events:
        told = {name: event[name] for name in ("revisions", "value", "decided_by")}
        words = ", ".join(f"{name}={value!r}" for name, value in told.items() if value is not None)
        status = Text(f"{event['status']:9} ", style=f"bold {colours[event['status']]}")
        console.print(status + Text(words))
        if event["critique"]:
            console.print(Text(event["critique"], style="italic"))
    title = 'graph.stream(..., stream_mode="custom")'
    picture = console.export_svg(title=title, unique_id="gate")
    # Without the font that it would load from elsewhere.
    return re.sub(r"@font-face {.*?}\s*", "", picture, flags=re.DOTALL)


_SAID = [
    ("Where is my order? It should be here since Monday.", "Check the tracking page.", False),
    ("The cup arrived broken.", "Send us a photo.", False),
    ("The cup arrived broken.", "I am sorry! We send a new one today.", True),
    ("I was charged twice.", "I am sorry about that. The second one is refunded.", True),
    ("Your page lost my address.", "Type it again.", False),
    ("The lamp does not light.", "Sorry to hear it. Does another bulb help?", True),
]
_CHAT = [
    {"role": "user", "content": "Hello, I ordered a lamp two weeks ago and nothing came."},
    {"role": "assistant", "content": "Could you tell me the number of your order?"},
    {"role": "user", "content": "4711. It was a present, and the birthday is over."},
]


@contextmanager
def _served(app: Any) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def page_pictures() -> dict[str, bytes]:
    """Photograph the review page: a case, and what an answer to it would do."""
    from playwright.sync_api import sync_playwright

    store = InMemoryStore()
    with LoopbackServer(keep_alive=False) as server, sync_playwright() as playwright:
        judge = Judge(
            criterion=_CRITERION.model_copy(
                update={"instructions": "Is the reply appropriate for the customer?"}
            ),
            model=server.chat_model(),
            embeddings=server.embedder(),
            keep_judgments=timedelta(days=30),
        )
        align = create_alignment_graph(judge.criterion, **judge.options).compile(store=store)
        reason = "It tells the customer what to do next."
        server.rules.append(Rule(when=lambda _: True, value=True, rationale=reason))
        words = {False: "It says no word of regret.", True: None}
        told = [
            {"inputs": asked, "outputs": said, "value": value, "author": "Ann"}
            | {"rationale": words[value]}
            for asked, said, value in _SAID * 2
        ]
        align.invoke({"feedback": told})
        reply = "Please check the tracking page, and write again in five working days."
        case = {"inputs": {"messages": _CHAT}, "outputs": reply}
        create_judge_graph(judge.criterion, **judge.options).compile(store=store).invoke(case)
        other = {**case, "value": True, "rationale": "It tells what to do.", "author": "Bob"}
        JudgeMemory(store, judge.criterion, embeddings=judge.embeddings).remember(other)
        app = create_review_app(Desk([judge], store=store), name="Ann")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        with _served(app) as url:
            page = browser.new_page(viewport={"width": 1180, "height": 760})
            page.goto(f"{url}/review/next")
            page.get_by_label("No").check()
            page.get_by_label("Why").fill("The birthday is over: it must say sorry first.")
            pictures = {"review-page": page.screenshot()}
            page.get_by_role("button", name="Answer").click()
            pictures["review-page-effect"] = page.screenshot()
            browser.close()
    return pictures


def main() -> None:
    """Draw all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, photo in page_pictures().items():
        (FOLDER / f"{name}.png").write_bytes(photo)
    pictures = {name: graph_picture(name) for name in GRAPHS}
    pictures["gate-events"] = events_picture()
    for name, picture in pictures.items():
        (FOLDER / f"{name}.svg").write_text(picture, encoding="utf-8")
    sys.stdout.write(f"drew {', '.join(pictures)}\n")


if __name__ == "__main__":
    main()
