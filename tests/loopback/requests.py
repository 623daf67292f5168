"""The recorded requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the server."""

    body: dict[str, Any]
    """The JSON body as sent."""
    headers: Mapping[str, str]
    """Header names in lower case."""

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))


class ChatRequest(Request):
    """A request for a chat completion."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body.get("messages", []))

    @property
    def streaming(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def schema_name(self) -> str | None:
        """The name of the requested JSON Schema, if any."""
        name = self._json_schema.get("name")
        return None if name is None else str(name)

    @property
    def schema(self) -> dict[str, Any] | None:
        schema = self._json_schema.get("schema")
        return schema if isinstance(schema, dict) else None

    @property
    def strict(self) -> bool:
        return bool(self._json_schema.get("strict"))

    @property
    def text(self) -> str:
        """The text of all messages, separated by blank lines."""
        return "\n\n".join(str(message.get("content") or "") for message in self.messages)

    @property
    def _json_schema(self) -> dict[str, Any]:
        response_format = self.body.get("response_format") or {}
        return response_format.get("json_schema") or {}


class EmbeddingRequest(Request):
    """One batch of texts to embed."""

    @property
    def texts(self) -> list[str]:
        """The texts; empty if token ids were sent."""
        value = self.body.get("input")
        texts: list[Any] = value if isinstance(value, list) else [value]
        return texts if all(isinstance(text, str) for text in texts) else []
