"""The real MLflow: its assessments as feedback, and memories that move there and back."""

import json
from pathlib import Path

import pytest

from tests.integration_tests.integrations.environments import run_worker
from tests.loopback import LoopbackServer

pytestmark = pytest.mark.outside


def test_a_memory_goes_there_and_back_and_what_is_learned_and_said_there_is_read(
    server: LoopbackServer, tmp_path: Path
) -> None:
    learned = [
        {"guideline_text": "Say sorry first.", "source_trace_ids": [0]},
        {"guideline_text": "Offer help.", "source_trace_ids": [0, 1]},
    ]
    server.script('{"result": false, "rationale": "Cold."}', json.dumps({"guidelines": learned}))
    run_worker("mlflow", server, tmp_path)
    prompt = server.chats[0].text
    for words in (
        "A reply about a loss must say sorry first.",
        "Too cold: it must say sorry first.",
        "Warm, and it helps.",
        "It sends the customer away.",
    ):
        assert words in prompt
