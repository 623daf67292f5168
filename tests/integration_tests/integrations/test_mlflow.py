"""The real MLflow: its assessments as feedback, and memories that move there and back."""

import json
from pathlib import Path

import pytest

from tests.integration_tests.integrations.mlflow_environment import run_steps
from tests.loopback import LoopbackServer

pytestmark = pytest.mark.outside


def test_a_memory_goes_to_mlflow_and_comes_back(server: LoopbackServer, tmp_path: Path) -> None:
    run_steps(server, tmp_path, "export")
    server.chats.clear()
    server.script('{"result": false, "rationale": "Cold."}')
    run_steps(server, tmp_path, "judge_and_come_back")
    [prompt] = [chat.text for chat in server.chats]
    for words in (
        "A reply about a loss must say sorry first.",
        "Too cold: it must say sorry first.",
        "Warm, and it helps.",
        "It sends the customer away.",
    ):
        assert words in prompt


def test_what_memalign_learned_is_read_with_its_sources_and_assessments_of_every_kind(
    server: LoopbackServer, tmp_path: Path
) -> None:
    learned = [
        {"guideline_text": "Say sorry first.", "source_trace_ids": [0]},
        {"guideline_text": "Offer help.", "source_trace_ids": [0, 1]},
    ]
    server.script(json.dumps({"guidelines": learned}))
    run_steps(server, tmp_path, "align_there", "assess")
