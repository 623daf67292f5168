"""A deterministic model that judges and distills by the schema alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


def judged(request: ChatRequest, rules: Sequence[Rule]) -> Reply:
    """The model's answer; the first matching rule decides."""
    matching_rule = next((rule for rule in tuple(rules) if rule.fits(request)), None)
    if matching_rule and matching_rule.reply is not None:
        return as_reply(matching_rule.reply)
    content = instance(request.schema) if request.schema else None
    if request.schema is None or not isinstance(content, dict):
        return answer(_PROSE)
    properties = _properties(request.schema)
    if "rationale" in properties:
        content["rationale"] = (matching_rule and matching_rule.rationale) or _RATIONALE
    if "value" in properties and matching_rule and matching_rule.value is not _UNSET:
        content["value"] = matching_rule.value
    if "operations" in properties:
        text = f"When judging, heed the expert: {_last_rationale(request.text)}"
        added = {"action": "add", "guideline": "", "text": text, "feedback": ["F1"]}
        content["operations"] = [added]
    return answer(content)


def instance(schema: dict[str, Any], root: dict[str, Any] | None = None) -> Any:
    """A simple value of a schema: true, the first choice or the maximum."""
    root = schema if root is None else root
    while "$ref" in schema:  # such as `#/$defs/Name`
        target: Any = root
        for key in schema["$ref"].removeprefix("#/").split("/"):
            target = target[key]
        schema = target
    variants = schema.get("anyOf") or schema.get("oneOf")
    if variants:
        typed = (variant for variant in variants if variant.get("type") != "null")
        return instance(next(typed), root)
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


def _last_rationale(text: str) -> str:
    _, opened, rest = text.rpartition("<rationale>")
    rationale_text, closed, _ = rest.partition("</rationale>")
    return (rationale_text.strip() if opened and closed else "") or "the label given"


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}
