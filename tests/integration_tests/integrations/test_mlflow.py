"""The real MLflow: assessments as feedback, and a judge as a scorer."""

from pathlib import Path

import pytest

from tests.integration_tests.integrations.environments import run_worker
from tests.loopback import LoopbackServer, Rule, error

pytestmark = pytest.mark.outside


def test_mlflow_scores_with_the_judge_and_its_assessments_become_feedback(
    server: LoopbackServer, tmp_path: Path
) -> None:
    server.rules = [
        Rule(lambda chat: "refused" in chat.text, reply=error(400, "It is refused by the server.")),
        Rule(lambda _: True, value=False, rationale="Too cold."),
    ]
    run_worker("mlflow", server, tmp_path)
    requests = [chat for chat in server.chats if "We are sorry." in chat.text]
    assert requests, "expectations are the reference"
