"""Ids by their beginnings."""

import random

import pytest

from memalign_graph import InvalidInputError
from memalign_graph.cli.selecting import find_id, short_ids

IDS = ["abcd1111", "abcd2222", "beef0000"]


@pytest.mark.parametrize(
    ("given", "found"), [("abcd1", "abcd1111"), ("BEEF", "beef0000"), (" beef0000 ", "beef0000")]
)
def test_a_beginning_names_one(given: str, found: str) -> None:
    assert find_id(given, IDS, "episode") == found


def test_a_whole_id_goes_before_those_it_begins() -> None:
    assert find_id("abcd", ["abcd", "abcd1"], "episode") == "abcd"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("abcd", r"'abcd' names 2 of them \(abcd1111, abcd2222\): give more of the id"),
        ("abc", "'abc' is too short to name a guideline: give at least 4"),
        ("", "too short"),
        ("ffff", "no guideline has an id that begins with 'ffff'"),
    ],
)
def test_what_names_none_or_several(given: str, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        find_id(given, IDS, "guideline")


def test_short_ids_always_name_one() -> None:
    chance = random.Random(7)  # noqa: S311 - ids that are the same in each run
    for size in (0, 1, 2, 300):
        ids = [f"{chance.randrange(16**9):032x}" for _ in range(size)]
        short = short_ids(ids)
        assert set(short) == set(ids)
        assert len(set(short.values())) == len(set(ids))
        for whole, part in short.items():
            assert find_id(part, ids, "episode") == whole
    assert short_ids(["a" * 32]) == {"a" * 32: "a" * 8}
