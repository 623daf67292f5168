"""The command that prints received prompts."""

import pytest

from tests import show_prompts
from tests.conftest import CASE, COLD, CRITERION, OTHER


def test_prompts_before_and_after_feedback_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show_prompts.main()
    printed = capsys.readouterr().out
    before, _, rest = printed.partition("The distiller")
    distiller, _, after = rest.partition("after feedback")
    assert "Guidelines from the experts" not in before
    assert COLD["rationale"] in distiller
    for label in ("Guidelines from the experts", COLD["rationale"], *OTHER.values()):
        assert str(label) in after
    assert '{"rationale": "Too cold: it must say sorry first.", "value": false}' in after
    assert CASE["outputs"] in after
    assert printed.count(CRITERION.instructions) == 4
    assert "byte-identical: True" in printed
