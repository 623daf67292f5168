"""The scenarios of one comment, with recorded answers of the embedded model."""

from pathlib import Path

import pytest

from benchmarks.one_comment import embedded_settings, judge_scenario, load_scenarios
from memalign_graph.errors import MemAlignError
from memalign_graph.models import BaseChatModel
from tests.loopback import LoopbackServer, replay

RECORDING = Path(__file__).parent / "recordings" / "one_comment.jsonl"
_OUTDATED = (
    "The recording lacks {} of the prompts. Record it again with the embedded model, on a machine "
    "with little else to do: python -m benchmarks.one_comment --split development "
    "--record tests/integration_tests/recordings/one_comment.jsonl"
)


def embedded_model(server: LoopbackServer) -> BaseChatModel:
    """A chat model with the embedded model's settings that calls the test server."""
    return server.chat_model(**embedded_settings())


def test_one_comment_decides_the_next_cases(server: LoopbackServer) -> None:
    missing: list[str] = []
    server.responder = replay(RECORDING, missing)
    outcomes = []
    for scenario in load_scenarios(split="development"):
        try:
            model = embedded_model(server)
            outcomes.append(judge_scenario(scenario, 1, model=model, embeddings="local"))
        except MemAlignError:
            if not missing:
                raise
    if missing:
        pytest.fail(_OUTDATED.format(len(missing)), pytrace=False)
    assert len(outcomes) == 8
    assert [outcome["breaks"] for outcome in outcomes].count(False) >= 7
    assert [outcome["keeps"] for outcome in outcomes].count(True) >= 7
