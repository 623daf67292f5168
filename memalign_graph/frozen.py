"""What all models of the package are: frozen, and strict about their fields."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """A model that can't be changed, and refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """Return the model as plain JSON values, for graph state and stores."""
        return self.model_dump(mode="json")
