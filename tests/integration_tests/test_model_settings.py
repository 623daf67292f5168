"""Parameters of models given as strings follow the model's profile."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr, create_model

from memalign_graph.models import DEFAULT_CHAT_MODEL, model_key, resolve_chat_model
from tests.conftest import CASE, Bench
from tests.integration_tests.evidence.judging_support import asks_for_value
from tests.loopback import LoopbackServer, Rule, with_logprobs


@pytest.fixture
def server(environment_server: LoopbackServer) -> LoopbackServer:
    return environment_server


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (DEFAULT_CHAT_MODEL, {"reasoning_effort": "none"}),
        ("openai:gpt-4.1-mini", {"temperature": 0}),
        ("openai:gpt-5.4-mini", {"temperature": 0, "reasoning_effort": "none"}),
        ("openai:gpt-6.1-sol", {}),  # whose profile names no efforts
        ("openai:of-a-server-of-ours", {"temperature": 0}),
    ],
)
async def test_model_gets_the_parameters_its_profile_supports(
    bench: Bench, name: str, settings: dict[str, Any]
) -> None:
    reply = with_logprobs("A", [("A", {"A": 0.9, "B": 0.1})])
    bench.server.rules = [Rule(asks_for_value, reply=reply)]
    graph = bench.judge_graph(model=name, confidence=True)
    judgment = (await bench.invoke(graph, CASE))["judgment"]
    assert judgment["warnings"] == []
    assert judgment["probabilities"] == pytest.approx({"true": 0.9, "false": 0.1})
    for chat in bench.server.chats:
        sent = {
            key: chat.body[key] for key in ("temperature", "reasoning_effort") if key in chat.body
        }
        assert sent == settings


@pytest.mark.usefixtures("server")
def test_model_key_does_not_depend_on_how_the_model_was_built() -> None:
    named = resolve_chat_model("openai:gpt-4.1-mini")
    made = ChatOpenAI(model="gpt-4.1-mini", temperature=0)
    assert model_key(named) == model_key(made)
    updated = made.model_copy(update={"profile": {"max_input_tokens": 1, "new": True}})
    assert model_key(updated) == model_key(made)
    assert model_key(made.model_copy(update={"temperature": 1.0})) != model_key(made)


class Effort(Enum):
    LOW, HIGH = "low", "high"


class Endpoint(BaseModel):
    temperature: float
    key: SecretStr = SecretStr("a")


@dataclass
class Safety:
    threshold: int


class WrappingModel(FakeListChatModel):
    """A model whose settings are objects, as those of wrapped endpoints are."""

    responses: list[str] = Field(default_factory=list)
    setting: Any = None


def test_model_key_covers_settings_that_are_objects() -> None:
    settings = [Effort.LOW, Effort.HIGH, Endpoint(temperature=0), Endpoint(temperature=1)]
    settings += [Safety(1), Safety(2), {Effort.LOW: 1}, {Effort.HIGH: 1}, {"low": [Safety(1)]}]
    keys = [model_key(WrappingModel(setting=each)) for each in settings]
    assert len(set(keys)) == len(settings)
    assert [model_key(WrappingModel(setting=each)) for each in settings] == keys
    rotated = Endpoint(temperature=0, key=SecretStr("b"))
    assert model_key(WrappingModel(setting=rotated)) == keys[2]
    assert model_key(WrappingModel(setting=object())) == model_key(WrappingModel())


class Region(BaseModel):
    country: str = "here"


def test_model_key_does_not_depend_on_settings_that_a_new_version_of_its_class_adds() -> None:
    def key(version: dict[str, Any], **settings: Any) -> str:
        kind = create_model("Model", __base__=WrappingModel, __module__="provider", **version)
        return model_key(kind(**settings))

    now: dict[str, Any] = {
        "top_k": (int, 4),
        "secret": (SecretStr | None, None),
        "options": (dict[str, Any], {}),
    }
    made: dict[str, Any] = {"lists": (list[str], Field(default_factory=list))}
    assert key({**now, **made}) == key({}) == key(now, secret="key")
    assert len({key(now), key(now, top_k=5), key(now, options={"a": 1})}) == 3
    of_environment = {"url": (str, Field(default_factory=lambda: "http://here"))}
    assert key(of_environment) != key({})
    old = create_model("Region", __base__=BaseModel)
    assert key({}, setting=Region()) == key({}, setting=old()) != key({})


class Anthropic(FakeListChatModel):
    """Some settings of ChatAnthropic, ChatOllama and others."""

    responses: list[str] = Field(default_factory=list)
    max_tokens: int | None = None
    default_request_timeout: float | None = None
    client_kwargs: dict[str, Any] = Field(default_factory=dict)
    keep_alive: int | None = None
    default_metadata: list[tuple[str, str]] = Field(default_factory=list)

    def _resolve_model_profile(self) -> Any:
        return {"max_output_tokens": 64_000}


def test_model_key_does_not_depend_on_the_connection_and_a_limit_of_the_profile() -> None:
    key = model_key(Anthropic())
    same: list[dict[str, Any]] = [
        {"max_tokens": 64_000},
        {"max_tokens": 64_000, "profile": {"max_input_tokens": 9_000}},
        {"default_request_timeout": 60.0},
        {"client_kwargs": {"headers": {"Authorization": "key"}}},
        {"keep_alive": 10},
        {"default_metadata": [("X-Key", "key")]},  # Gemini's headers
    ]
    assert {model_key(Anthropic(**settings)) for settings in same} == {key}
    assert model_key(Anthropic(max_tokens=1_000)) != key


@pytest.mark.parametrize("name", ["default_headers", "default_query", "extra_headers"])
def test_model_key_does_not_depend_on_keys_in_headers(server: LoopbackServer, name: str) -> None:
    def key(**settings: Any) -> str:
        in_call = {name: settings.pop(name)} if name.startswith("extra") else {}
        return model_key(server.chat_model(**settings, model_kwargs={"user": "me", **in_call}))

    assert key(**{name: {"X-Key": "old"}}) == key(**{name: {"X-Key": "new"}})
