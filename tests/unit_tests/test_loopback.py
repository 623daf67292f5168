"""The loopback server behaves like OpenAI for LangChain's real clients."""

from typing import Any, cast

import openai
import pytest

from tests.loopback import LoopbackServer


def schema_of(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": "judgment",
        "type": "object",
        "properties": {"rationale": {"type": "string"}, "value": value},
        "required": ["rationale", "value"],
        "additionalProperties": False,
    }


def ask(model: Any, schema: Any = None, **options: Any) -> dict[str, Any]:
    schema = schema or schema_of({"type": "boolean"})
    judge = model.with_structured_output(schema, method="json_schema", include_raw=True, **options)
    return cast("dict[str, Any]", judge.invoke("Judge."))


def test_requests_that_openai_would_refuse_are_refused(server: LoopbackServer) -> None:
    # LangChain itself closes the schemas it converts, but not those in OpenAI's own form.
    opened = {**schema_of({"type": "boolean"}), "additionalProperties": True}
    own_form = {"name": "open", "strict": True, "schema": opened}
    with (
        pytest.warns(UserWarning, match="Invalid schema"),
        pytest.raises(openai.BadRequestError, match="additionalProperties"),
    ):
        ask(server.chat_model(), own_form)
    with pytest.raises(openai.BadRequestError, match="does not match the pattern"):
        ask(server.chat_model(), {**schema_of({"type": "boolean"}), "title": "is it good?"})
    with pytest.raises(openai.BadRequestError, match="may not be an empty string"):
        server.embedder().embed_query("")


def test_failing_responder_is_reported() -> None:
    def fail(_: object) -> Any:
        raise LookupError("no such case")

    with LoopbackServer() as server:
        server.responder = fail
        with pytest.raises(openai.InternalServerError, match="no such case"):
            server.chat_model().invoke("Judge.")
        assert len(server.chats) == 1
        assert isinstance(server.errors[0], LookupError)
