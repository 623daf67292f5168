"""Rows of arrays for cases, given again once they are free."""

from typing import Any


class Slots:
    """Numbers for cases, given again once they are free."""

    def __init__(self) -> None:
        self.keys: list[str | None] = []
        """The keys by number; None where it is free."""
        self.of: dict[str, int] = {}
        """The numbers by key."""
        self._free: list[int] = []

    def add(self, key: str) -> int:
        """Give a case a number."""
        if self._free:
            slot = self._free.pop()
            self.keys[slot] = key
        else:
            slot = len(self.keys)
            self.keys.append(key)
        self.of[key] = slot
        return slot

    def remove(self, key: str) -> int:
        """Free a number."""
        slot = self.of.pop(key)
        self.keys[slot] = None
        self._free.append(slot)
        return slot

    def key(self, slot: int) -> str | None:
        """Tell whose a number is."""
        return self.keys[slot] if 0 <= slot < len(self.keys) else None


def with_room(array: Any, shape: tuple[int, ...], blank: float, kind: str = "f8") -> Any:
    """Return an array that has room, and doubles as it grows."""
    import numpy as np

    count = 0 if array is None else len(array)
    if count and shape[0] <= count:
        return array
    more = np.full((max(count, shape[0] - count, 64), *shape[1:]), blank, dtype=kind)
    return np.concatenate((array, more)) if count else more
