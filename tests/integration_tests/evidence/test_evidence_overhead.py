"""The script that measures what evidence adds to a judgment runs, in small."""

import re
import sys

import pytest

from benchmarks import evidence


def test_a_table_of_every_scale(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--episodes", "30", "--dimension", "8", "--times", "4"]
    monkeypatch.setattr(sys, "argv", ["evidence", "--overhead", *sizes])
    evidence.main()
    printed = capsys.readouterr().out
    assert printed.startswith("30 judged cases, 8 dimensions; load ")
    for name in evidence.SCALES:
        [line] = [one for one in printed.splitlines() if one.startswith(f"| {name} |")]
        assert len(re.findall(r"\d+\.\d\d ms", line)) == 4
