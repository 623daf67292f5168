"""What a caller can set for one run: the graph's context, a form in Studio."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator

from memalign_graph.errors import InvalidInputError, explain
from memalign_graph.memory.layout import DEFAULT_NAMESPACE, check_namespace
from memalign_graph.types import Judgment

ReviewMode = Literal["always", "never", "uncertain"]
"""When the expert is asked.

- `always`: about every judgment.
- `never`: about none.
- `uncertain`: about those that are likely to be wrong, and a few by chance.
"""

CANT_CHOOSE = (
    'review: "uncertain" goes by how sure the judge is, and this graph does not measure it: build '
    'it with confidence=True, decide="evidence", or both.'
)
"""What is wrong with `uncertain` where a graph was not built for it."""

Review = ReviewMode | Callable[[Judgment], bool]
"""What a builder takes as `review`: a mode, or a function that decides on the judgment."""

DEFAULT_K = 5
"""How many similar examples a judge is shown, unless told otherwise."""

DEFAULT_SETTINGS: Mapping[str, Any] = {
    "namespace": list(DEFAULT_NAMESPACE),
    "k": DEFAULT_K,
    "model": None,
    "review": "always",
}
"""The settings of a graph that was told nothing else, by the names of the context's fields."""

MAX_K = 100
"""The most similar examples that can be asked for."""


class MemAlignContext(BaseModel):
    """Settings of one run. What is not set stays as the graph was built."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: tuple[str, ...] = Field(
        default=DEFAULT_NAMESPACE,
        description=(
            "Where the memory lies in the store; keeps teams or customers apart. One or more "
            "labels without dots."
        ),
    )
    """Where the memory lies in the store."""

    k: int = Field(
        default=DEFAULT_K,
        ge=0,
        le=MAX_K,
        description="How many similar examples the judge is shown; 0 for none.",
    )
    """How many similar examples the judge is shown."""

    model: str | None = Field(
        default=None,
        description=(
            "The chat model as 'provider:name', such as 'openai:gpt-4.1-mini'; empty for the "
            "graph's own."
        ),
    )
    """The chat model as `provider:name`; None for the graph's own."""

    review: ReviewMode | None = Field(
        default=None,
        description=(
            "When the expert is asked; empty for what the graph was built with. 'uncertain' is for "
            "graphs built with a confidence or decide='evidence'."
        ),
    )
    """When the expert is asked; None for what the graph was built with."""

    @field_validator("namespace", mode="before")
    @classmethod
    def _check_namespace(cls, namespace: Any) -> Any:
        return check_namespace(namespace)

    @field_validator("model")
    @classmethod
    def _drop_blank(cls, model: str | None) -> str | None:
        return (model or "").strip() or None


class _GraphContext(MemAlignContext):
    """What a graph's caller gives: LangGraph makes it of the fields."""

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise InvalidInputError(f"context: {explain(error)}") from error


def context_schema(*, k: int, model: Any, review: Review) -> type[MemAlignContext]:
    """Return the context's schema with a graph's own settings as its defaults."""
    fields = MemAlignContext.model_fields
    defaults = {
        "k": k,
        "model": model if isinstance(model, str) else None,
        "review": review if isinstance(review, str) else None,
    }
    overrides: dict[str, Any] = {}
    for name, default in defaults.items():
        field = fields[name]
        overrides[name] = (
            field.rebuild_annotation(),
            Field(default=default, description=field.description),
        )
    schema: type[MemAlignContext] = create_model(
        "MemAlignContext", __base__=_GraphContext, __doc__=MemAlignContext.__doc__, **overrides
    )
    return schema


def resolve_context(context: Any, built: Mapping[str, Any]) -> dict[str, Any]:
    """Work out one run's settings."""
    own = own_context(context)
    settings = dict(built)
    if own is not None:
        settings.update(
            {
                name: value
                for name in own.model_fields_set
                if (value := getattr(own, name)) is not None
            }
        )
    return {**settings, "namespace": list(settings["namespace"])}


def own_context(context: Any) -> MemAlignContext | None:
    """Find what a run's context has for judging."""
    if context is None or isinstance(context, MemAlignContext):
        return context
    own = context.get("memalign") if isinstance(context, Mapping) else None
    own = own if own is not None else getattr(context, "memalign", None)
    try:
        return None if own is None else MemAlignContext.model_validate(own)
    except ValidationError as error:
        raise InvalidInputError(f"context: {explain(error)}") from error
