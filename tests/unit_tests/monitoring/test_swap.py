"""After a change to a worse model, agreement on what nobody is asked about stays at the target."""

import numpy as np
import pytest

from benchmarks.reliability import SWAPS, swapped
from memalign_graph.evidence.threshold import find_threshold, more_decisions


@pytest.mark.parametrize("is_sampled", [True, False])
@pytest.mark.parametrize("kind", list(SWAPS)[:3])
def test_agreement_stays_at_the_target(kind: str, *, is_sampled: bool) -> None:
    options = SWAPS[kind]
    found = [swapped(seed, is_sampled=is_sampled, **options) for seed in range(60)]
    held = [agreement is None or agreement >= 0.9 for agreement, _ in found]
    assert np.mean(held) >= 0.95
    if is_sampled and not options:
        assert np.mean([share for _, share in found]) > 0.05


def test_more_decisions_are_counted_by_the_agreement_so_far() -> None:
    few = find_threshold([(0.9, True)] * 30, 0.9)
    assert more_decisions(few) == 10
    assert more_decisions(find_threshold([(0.9, True)] * 40, 0.9)) == 0
    half = [(0.9, number % 2 == 0) for number in range(60)]
    assert more_decisions(find_threshold(half, 0.9)) is None
    close = [(0.9, number % 18 > 0) for number in range(90)]
    more = more_decisions(find_threshold(close, 0.9))
    assert more is not None
    assert find_threshold(close * ((90 + more) // 90 + 1), 0.9).threshold is not None
