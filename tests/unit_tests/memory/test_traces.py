"""Texts of a value, which the words of edited calls are quoted from in their order."""

from memalign_graph.memory.traces import texts_in


def test_texts_are_in_their_order() -> None:
    value = {"a": ["b", {"c": b"d"}, 1], "e": ("f", None), "g": "h"}
    assert [*texts_in(value)] == ["a", "b", "c", "d", "e", "f", "g", "h"]
