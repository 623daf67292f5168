"""Leases last ten minutes, or 90 seconds after the page is closed."""

from datetime import datetime, timedelta

from langgraph.store.memory import InMemoryStore

from memalign_graph.review.leases import Leases, holder_of

NAMESPACE = ("memalign_review", "leases")


class Clock:
    """Leases in a store with a controllable clock."""

    def __init__(self) -> None:
        self.store = InMemoryStore()
        self.leases = Leases(lambda: self.store)

    async def holder_after(self, **time: float) -> str | None:
        for lease in await self.leases.all():
            seen = datetime.fromisoformat(lease.value["seen"]) - timedelta(**time)
            value = {**lease.value, "seen": seen.isoformat()}
            await self.store.aput(NAMESPACE, lease.key, value)
        return holder_of("j-1", await self.leases.all(), "bob")


async def test_lease_lasts_ten_minutes() -> None:
    clock = Clock()
    await clock.leases.renew("ann", "j-1")
    assert await clock.holder_after(minutes=9, seconds=50) == "ann"
    assert await clock.holder_after(seconds=10) is None


async def test_closed_page_frees_its_case_after_90_seconds_unless_another_tab_is_open() -> None:
    clock = Clock()
    await clock.leases.renew("ann", "j-1")
    await clock.leases.leave("ann", "j-1")
    assert await clock.holder_after(seconds=80) == "ann"
    assert await clock.holder_after(seconds=10) is None
    await clock.leases.renew("ann", "j-1")
    await clock.leases.leave("ann", "j-1")
    await clock.leases.renew("ann", "j-1")  # the heartbeat of the other tab
    assert await clock.holder_after(minutes=5) == "ann"


async def test_first_lease_holder_is_kept() -> None:
    clock = Clock()
    for name in ("ann", "bob", "ann"):  # the last is a heartbeat
        await clock.leases.renew(name, "j-1")
    leases = await clock.leases.all()
    assert [holder_of("j-1", leases, name) for name in ("ann", "bob")] == [None, "ann"]
