"""A small deterministic model: judges, and distils, by the shape of the schema alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.loopback.replies import Reply, ReplyLike, answer, as_reply
from tests.loopback.requests import ChatRequest

_UNSET: Any = object()
_RATIONALE = "The loopback judge finds nothing to say against it."
_PROSE = "The loopback model has nothing to add."


@dataclass(frozen=True, slots=True)
class Rule:
    """What to answer when a request fits.

    A `reply` answers any request that fits; a `value` or `rationale` answers only
    requests for a judgment, and passes by all others.
    """

    when: Callable[[ChatRequest], bool]
    value: Any = _UNSET
    rationale: str | None = None
    reply: ReplyLike | None = None

    def fits(self, request: ChatRequest) -> bool:
        judges = "value" in _properties(request.schema or {})
        return (self.reply is not None or judges) and self.when(request)


@dataclass(slots=True)
class JudgeDouble:
    """The default responder; the first rule that fits decides."""

    rules: list[Rule] = field(default_factory=list)

    def __call__(self, request: ChatRequest) -> Reply:
        rule = next((rule for rule in tuple(self.rules) if rule.fits(request)), None)
        if rule and rule.reply is not None:
            return as_reply(rule.reply)
        if request.schema is None:
            return answer(_PROSE)
        content = instance(request.schema)
        if not isinstance(content, dict):
            return answer(_PROSE)
        properties = _properties(request.schema)
        if "rationale" in properties:
            content["rationale"] = (rule and rule.rationale) or _RATIONALE
        if "value" in properties and rule and rule.value is not _UNSET:
            content["value"] = rule.value
        if "operations" in properties:
            content["operations"] = [_added_guideline(request)]
        return answer(content)


def instance(schema: dict[str, Any], root: dict[str, Any] | None = None) -> Any:
    """A simple value that the schema allows: yes, the first choice, the most."""
    root = schema if root is None else root
    schema = _resolved(schema, root)
    variants = schema.get("anyOf") or schema.get("oneOf")
    if variants:
        return instance(next(one for one in variants if one.get("type") != "null"), root)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if kind == "object":
        parts = _properties(schema).items()
        return {name: instance(part, root) for name, part in parts}
    if kind == "array":
        items = schema.get("items", {})
        return [instance(items, root) for _ in range(schema.get("minItems", 0))]
    most = schema.get("maximum", schema.get("minimum", 1))
    text = "x" * schema.get("minLength", 0)
    return {"boolean": True, "integer": most, "number": most, "null": None}.get(kind, text)


def _added_guideline(request: ChatRequest) -> dict[str, Any]:
    text = f"When judging, heed the expert: {_last_rationale(request.text)}"
    return {"action": "add", "guideline": "", "text": text, "feedback": ["F1"]}


def _last_rationale(text: str) -> str:
    _, opened, rest = text.rpartition("<rationale>")
    said, closed, _ = rest.partition("</rationale>")
    return (said.strip() if opened and closed else "") or "the label given"


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Follow references such as `#/$defs/Name`."""
    while "$ref" in schema:
        target: Any = root
        for key in schema["$ref"].removeprefix("#/").split("/"):
            target = target[key]
        schema = target
    return schema
