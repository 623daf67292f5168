"""What is answered where nothing is scripted."""

from typing import Any, cast

import pytest

from tests.loopback import (
    LoopbackServer,
    Rule,
    refusal,
)
from tests.unit_tests.loopback.schemas import DISTILLED, Ask, judgment_schema


@pytest.mark.parametrize(
    ("scale", "value"),
    [
        ({"type": "boolean"}, True),
        ({"type": "string", "enum": ["poor", "fair"]}, "poor"),
        ({"enum": [3, 2]}, 3),
        ({"type": "integer", "minimum": 1, "maximum": 5}, 5),
        ({"type": "number", "minimum": 0}, 0),
        ({"anyOf": [{"type": "null"}, {"type": "integer", "maximum": 7}]}, 7),
        ({"$ref": "#/$defs/Scale"}, "tie"),
    ],
)
def test_default_judgments(server: LoopbackServer, scale: dict[str, Any], value: object) -> None:
    schema = judgment_schema(scale) | {"$defs": {"Scale": {"const": "tie"}}}
    schema["properties"]["doubts"] = {"type": "array", "items": {"type": "string"}}
    model = server.chat_model().with_structured_output(schema, method="json_schema")
    given = cast("dict[str, Any]", model.invoke("Judge."))
    assert given["value"] == value
    assert given["rationale"]
    assert given["doubts"] == []


async def test_the_first_rule_that_fits_decides(server: LoopbackServer, ask: Ask) -> None:
    server.rules += [
        Rule(lambda request: "silent" in request.text, reply=refusal("No.")),
        Rule(lambda request: "cold" in request.text, value=False, rationale="Cold."),
        Rule(lambda request: "cold" in request.text, value=True),
    ]
    model = server.chat_model()
    given = await ask(model, "A cold reply.")
    assert given["parsed"] == {"rationale": "Cold.", "value": False}
    assert (await ask(model, "A warm reply."))["parsed"]["value"] is True
    assert (await ask(model, "silent"))["raw"].additional_kwargs["refusal"] == "No."
    distilled = await ask(model, "A cold reply.", DISTILLED)
    assert distilled["parsed"]["operations"][0]["action"] == "add"


async def test_default_distilling(server: LoopbackServer, ask: Ask) -> None:
    prompt = "<rationale>Too long.</rationale> <rationale> Name the\nnext step. </rationale>"
    model = server.chat_model()
    expected = {
        "action": "add",
        "guideline": "",
        "text": "When judging, heed the expert: Name the\nnext step.",
        "feedback": ["F1"],
    }
    assert (await ask(model, prompt, DISTILLED))["parsed"] == {"operations": [expected]}
    unsaid = await ask(model, "F1: false", DISTILLED)
    assert unsaid["parsed"]["operations"][0]["text"].endswith("the expert: the label given")


def test_prose_without_a_schema_and_a_responder_of_ones_own(server: LoopbackServer) -> None:
    assert "nothing to add" in str(server.chat_model().invoke("Hello.").content)
    server.responder = lambda request: f"You said: {request.messages[-1]['content']}"
    assert server.chat_model().invoke("Hello.").content == "You said: Hello."
