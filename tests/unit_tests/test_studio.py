"""`langgraph.json` serves the criterion file of the command line."""

import importlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from memalign_graph import Boolean, InvalidInputError, Numeric, create_panel_graph

TONE = "name: tone\ninstructions: Is it kind?\nscale: boolean\n"


def studio(monkeypatch: pytest.MonkeyPatch, path: Path) -> Any:
    monkeypatch.setenv("MEMALIGN_CRITERION", str(path))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    return importlib.reload(importlib.import_module("memalign_graph.studio"))


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Any:
    yield
    monkeypatch.delenv("MEMALIGN_CRITERION", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    importlib.reload(importlib.import_module("memalign_graph.studio"))


def test_criterion_file_is_served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "tone.yaml"
    path.write_text(TONE + "judge: {k: 7, keep_judgments: 2}\nlearn: {guard: replay}\n")
    options, create = dict[str, Any](), create_panel_graph
    monkeypatch.setattr(
        "memalign_graph.panel.create_panel_graph",
        lambda *args, **kwargs: options.update(kwargs) or create(*args, **kwargs),
    )
    served = studio(monkeypatch, path)
    [judge] = served.judges
    assert "replay_cases" in served.align.nodes
    assert judge.criterion.scale == Boolean()
    assert (judge.k, judge.keep_judgments) == (7, timedelta(days=2))
    assert str(judge.model).startswith("openai:")
    assert (options["k"], options["keep_judgments"]) == (7, None)


def test_list_of_criteria_is_served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "criteria.json"
    path.write_text(
        '[{"name": "a", "instructions": "?"}, {"name": "b", "instructions": "?", "scale": "1-5"}]'
    )
    first, second = studio(monkeypatch, path).judges
    assert (first.criterion.name, first.keep_judgments) == ("a", timedelta(days=30))
    assert second.criterion.scale == Numeric(minimum=1, maximum=5, integer=True)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (TONE + "judge: {kk: 3}", r"judge\.kk: is not a setting"),
        ("[]", "has no criterion in its list"),
        ("name: [", "is neither YAML nor JSON"),
    ],
)
def test_unusable_file_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=says) as caught:
        studio(monkeypatch, path)
    assert str(caught.value).startswith("MEMALIGN_CRITERION: ")
