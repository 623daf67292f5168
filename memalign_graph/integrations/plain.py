"""What other tools hand over, as plain JSON values and as values of a scale."""

import dataclasses
import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage, convert_to_openai_messages
from pydantic import BaseModel

from memalign_graph.scales import Boolean, Scale, Value


def plain_json(value: Any) -> Any:
    """Turn what applications return into plain JSON: messages, models, tuples, ids, times."""
    if isinstance(value, Mapping):
        return {key: plain_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_json(one) for one in value]
    plain = _plain(value)
    return value if plain is value else plain_json(plain)


def _plain(value: Any) -> Any:
    """Turn one value into something nearer to JSON; itself where there is nothing to do."""
    match value:
        case Enum():
            value = value.value
        case BaseMessage():
            value = convert_to_openai_messages(value)
        case BaseModel():
            value = value.model_dump(mode="json")
        case datetime() | date():
            value = value.isoformat()
        case UUID() | Decimal():
            value = str(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    return value


def given_or_none(value: Any) -> Any:
    """Return a value, or None where a tool writes that there is none."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return None if isinstance(value, dict | list) and not value else value


def value_on_scale(value: Any, scale: Scale) -> Value:
    """Read a value that another tool stored, as the scale writes it."""
    if isinstance(scale, Boolean) and isinstance(value, float) and value in (0.0, 1.0):
        value = bool(value)
    return scale.validate_value(value)
