"""The part of `JudgeMemory` that tells how far the judge can be trusted, and what was asked."""

from datetime import date
from typing import Any, get_args

from memalign_graph.errors import InvalidInputError
from memalign_graph.evidence.trust import Trust
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.memory import review_report
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.review_report import ReviewReport
from memalign_graph.types import Decide


class MemoryOversight:
    """What experts need not be asked about, and what they were; see `JudgeMemory`."""

    _access: MemoryAccess

    def trust(self, *, decide: Decide = "verdict", target_agreement: float = 0.9) -> Trust:
        """Tell from which confidence on `review="uncertain"` now asks nobody.

        Args:
            decide: What the judge's values come from, as its graph was built.
            target_agreement: How often a judgment that nobody is asked about is to agree with the
                experts, above 0 and below 1.

        Returns:
            The threshold, the agreement and the share of past decisions above it, and how many
            decisions that rests on.

        Raises:
            InvalidInputError: If an option can't be used.
            EmbeddingError: If an embedding call fails; one is made only where memory was filled
                with another embedder.
        """
        return run(_trust(BLOCKING, self._access, decide, target_agreement))

    async def atrust(self, *, decide: Decide = "verdict", target_agreement: float = 0.9) -> Trust:
        """Async twin of `trust`."""
        return await _trust(AWAITING, self._access, decide, target_agreement)

    def review_report(
        self, *, since: date | None = None, until: date | None = None
    ) -> ReviewReport:
        """Report what `review="uncertain"` asked in the last 90 days, why, and what came of it.

        Args:
            since: The first day, in UTC; the log's first unless given.
            until: The last day; the log's last unless given.

        Returns:
            In all and by day: coverage, questions and their reasons, and how often the judge agreed
            with the experts, on all that was asked and on what was asked by chance alone.

        Raises:
            InvalidInputError: If a day is none, or the last one is before the first.
        """
        return run(review_report.review_report(BLOCKING, self._access, since=since, until=until))

    async def areview_report(
        self, *, since: date | None = None, until: date | None = None
    ) -> ReviewReport:
        """Async twin of `review_report`."""
        return await review_report.review_report(AWAITING, self._access, since=since, until=until)


async def _trust(io: IO, access: MemoryAccess, decide: Any, target_agreement: Any) -> Trust:
    # Imported where it is needed: evidence is built on memory.
    from memalign_graph.evidence.asking import current_trust
    from memalign_graph.settings import Uncertain

    if decide not in get_args(Decide):
        known = " or ".join(map(repr, get_args(Decide)))
        raise InvalidInputError(f"decide: {decide!r} is not known: give {known}.")
    target = Uncertain(target_agreement=target_agreement).target_agreement
    return await current_trust(io, access, decide, target)
