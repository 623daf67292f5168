"""How far an evaluation is: a bar in the terminal, or a function that is told."""

import threading
from collections.abc import Callable
from typing import Any

from memalign_graph.errors import InvalidInputError, needs_extra

ProgressLike = bool | Callable[[int, int], None]
"""True for a progress bar, False for none, or a function of how much is done, of how much."""


class Progress:
    """Counts what is done, from any thread."""

    def __init__(self, wanted: ProgressLike) -> None:
        """Begin."""
        if not isinstance(wanted, bool) and not callable(wanted):
            raise InvalidInputError(
                f"progress: {wanted!r} is neither True, False nor a function of (done, of)."
            )
        self._tell = wanted if callable(wanted) else None
        self._bar: Any = None
        if wanted is True:
            with needs_extra("evaluation", "a progress bar (`progress=False` needs none)"):
                from tqdm import tqdm
            self._bar = tqdm(total=0, unit="step", dynamic_ncols=True, leave=False)
        self._lock = threading.Lock()
        self._done = 0
        self._of = 0

    def expect(self, steps: int) -> None:
        """Say that there is more to do."""
        with self._lock:
            self._of += steps
            self._show(0)

    def tick(self) -> None:
        """Say that one step is done."""
        with self._lock:
            self._done += 1
            self._show(1)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()

    def _show(self, steps: int) -> None:
        if self._bar is not None:
            self._bar.total = self._of
            self._bar.update(steps)
            self._bar.refresh()
        if self._tell is not None:
            self._tell(self._done, self._of)
