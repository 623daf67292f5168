"""The questions to experts as two published inboxes read them, and the replies these send.

Facts, from public sources (repository, path, commit):

- langchain-ai/agent-chat-ui 254cd6f, `src/components/thread/agent-inbox/`: `utils.ts` (what is
  edited and decided), `components/inbox-item-input.tsx` (the form),
  `components/thread-actions-view.tsx` (several actions), `index.tsx` (several interrupts), and
  `isAgentInboxInterruptSchema` in `src/lib/agent-inbox-interrupt.ts` (what it recognises).
- langchain-ai/agent-inbox 1141fd0, `src/components/agent-inbox/`: `types.ts`,
  `contexts/ThreadContext.tsx` (`sendHumanResponse`), `hooks/use-interrupted-actions.tsx` (091034b),
  and `contexts/utils.ts` (0263e34, `normalizeInterrupt`); its README says that what is edited
  comes back as text.
- `HITLRequest` of langchain's own human-in-the-loop middleware.
"""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from memalign_graph import Episode, Example, Feedback
from memalign_graph.interrupts import Form, review_form
from tests.unit_tests.alignment.alignment_cases import standing
from tests.unit_tests.test_interrupts import CRITERIA, FORMS, JUDGED, JUDGMENTS, SEEN, WORDS

EXAMPLE = Example(inputs={"q": "Why?"}, outputs=["Because."], reference_outputs="So.")
SAID = Episode.from_feedback(Feedback(example=EXAMPLE, rationale="Say more."))
EXPERTS: dict[str, tuple[Any, str]] = {
    "tone": (False, "false"),
    "grade": ("Poor", "Poor"),
    "level": (5, "5"),
    "share": (0.5, "0.5"),
    "pair": ("tie", "tie"),
}
"""An expert's value on each scale, and the same as text."""

ON_EACH_SCALE = pytest.mark.parametrize("scale", list(EXPERTS))
PANEL = FORMS["panel"]


def review_on(scale: str) -> Form[Any]:
    """A review with every optional part."""
    guidelines = [standing("Be brief.", "e")]
    criterion, judgment = CRITERIA[scale], JUDGMENTS[scale]
    return review_form(criterion, EXAMPLE, judgment, guidelines=guidelines, episodes=[SAID])


EACH_QUESTION = pytest.mark.parametrize(
    "payload",
    [*(review_on(scale).payload for scale in EXPERTS), FORMS["conflicts"].payload, PANEL.payload],
    ids=[*EXPERTS, "conflicts", "panel"],
)
"""Every payload that this package interrupts with."""


def shown_by_chat_ui(interrupt: Any) -> bool:
    """Whether agent-chat-ui shows an interrupt as a form rather than raw JSON."""
    first = interrupt[0] if isinstance(interrupt, list) else interrupt
    actions, configs = first["value"]["action_requests"], first["value"]["review_configs"]
    typed: list[tuple[Any, type]] = [(action.get("name"), str) for action in actions]
    typed += [(action.get("args"), dict) for action in actions]
    typed += [(config.get("action_name"), str) for config in configs]
    typed += [(config.get("allowed_decisions"), list) for config in configs]
    are_lists = isinstance(actions, list) and isinstance(configs, list)
    return are_lists and bool(actions and configs) and all(isinstance(*item) for item in typed)


def as_shown(value: Any) -> str:
    """An argument as text in both inboxes; JavaScript has one number type."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def shown_by_agent_inbox(payload: dict[str, Any]) -> dict[str, Any]:
    """The request that Agent Inbox builds from the first action."""
    action, config = payload["action_requests"][0], payload["review_configs"][0]
    allowed = config["allowed_decisions"]
    return {
        "action_request": {"action": action["name"], "args": action["args"]},
        "config": {
            "allow_accept": "approve" in allowed,
            "allow_edit": "edit" in allowed,
            "allow_respond": "reject" in allowed,
            "allow_ignore": False,
        },
        "description": action["description"],
    }


@EACH_QUESTION
def test_interrupt_is_shown_as_a_form(payload: dict[str, Any]) -> None:
    assert shown_by_chat_ui({"value": payload, "id": "1"})
    assert shown_by_chat_ui([{"value": payload, "id": "1"}])
    by_name = {
        review_config["action_name"]: review_config for review_config in payload["review_configs"]
    }
    assert {request["name"] for request in payload["action_requests"]} == set(by_name)
    for action in payload["action_requests"]:
        assert action["description"].startswith("## ")
        # Nested values come back as JSON text.
        assert all(isinstance(value, str | bool | int | float) for value in action["args"].values())
        assert set(action["args"]) == set(by_name[action["name"]]["args_schema"]["properties"])
    request = shown_by_agent_inbox(payload)
    assert request["config"]["allow_accept"] is request["config"]["allow_edit"] is True
    assert request["config"]["allow_respond"] == (payload != PANEL.payload)


@EACH_QUESTION
def test_interrupt_is_exactly_langchains_request(payload: dict[str, Any]) -> None:
    hitl = pytest.importorskip("langchain.agents.middleware.human_in_the_loop")
    strict = TypeAdapter(hitl.HITLRequest)
    assert strict.validate_python(payload, strict=True, extra="forbid") == payload
    assert strict.validate_json(json.dumps(payload), strict=True, extra="forbid") == payload


def read(reply: Any, scale: str) -> Any:
    """Return the parsed reply; the schema must agree."""
    form = review_on(scale)
    parsed = form.read(reply)
    assert form.schema.model_validate(reply).root == parsed
    return parsed


def edited_by_chat_ui(args: dict[str, Any]) -> dict[str, Any]:
    """An edit as agent-chat-ui sends it: edited arguments are text, the rest unchanged."""
    return {"type": "edit", "edited_action": {"name": "review_judgment", "args": args}}


def edited_by_agent_inbox(args: dict[str, Any]) -> dict[str, Any]:
    """An edit as Agent Inbox sends it."""
    return {"type": "edit", "args": {"action": "review_judgment", "args": args}}


def forms(response: dict[str, Any]) -> list[Any]:
    """The formats of an Agent Inbox response."""
    kinds = {"accept": "approve", "response": "reject"}
    renamed = {**response, "type": kinds.get(response["type"], response["type"])}
    return [[response], response, {"decisions": [renamed]}]


@ON_EACH_SCALE
@pytest.mark.parametrize("rationale", [SEEN, f" {WORDS}\n", ""])
def test_edit_corrects_the_value_as_text_or_as_json(scale: str, rationale: str) -> None:
    value, text = EXPERTS[scale]
    judged = JUDGED[scale]
    comment_fields = {"rationale": WORDS} if WORDS in rationale else {}
    rows = [(text, value), (value, value)]
    rows += [(judged, judged)] if comment_fields else []  # only the comment was edited
    for sent, expected in rows:
        args = {"value": sent, "rationale": rationale}
        replies = [{"decisions": [edited_by_chat_ui(args)]}, edited_by_chat_ui(args)]
        for reply in [*replies, *forms(edited_by_agent_inbox(args))]:
            parsed = read(reply, scale)
            assert parsed == {"value": expected, **comment_fields}
            assert type(parsed["value"]) is type(expected)


@ON_EACH_SCALE
def test_approval_and_unchanged_edit_confirm_the_judges_value(scale: str) -> None:
    confirmed = {"value": JUDGED[scale]}
    assert read({"decisions": [{"type": "approve"}]}, scale) == confirmed
    [action] = review_on(scale).payload["action_requests"]
    texts = {name: as_shown(value) for name, value in action["args"].items()}
    assert read({"decisions": [edited_by_chat_ui(texts)]}, scale) == confirmed
    for args in (action["args"], texts, None):
        request = {"action": action["name"], "args": args} if args else None
        for reply in forms({"type": "accept", "args": request}):
            assert read(reply, scale) == confirmed


@ON_EACH_SCALE
@pytest.mark.parametrize("as_text", [True, False], ids=["reset-before", "touched-alone"])
def test_panel_accepts_edits_of_its_form(scale: str, *, as_text: bool) -> None:
    value, text = EXPERTS[scale]
    [action] = PANEL.payload["action_requests"]
    args = {name: as_shown(field) if as_text else field for name, field in action["args"].items()}
    args |= {scale: text, f"{scale}_rationale": WORDS}
    replies = [{"decisions": [edited_by_chat_ui(args)]}]
    replies += forms(edited_by_agent_inbox(args))
    for reply in replies:
        assert PANEL.read(reply) == {scale: {"value": value, "rationale": WORDS}}
