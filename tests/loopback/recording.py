"""Recorded chat completions, one per line, that replace a model."""

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.loopback.replies import Answer, Reply, error
from tests.loopback.requests import ChatRequest

_KEYED = ("messages", "response_format", "max_tokens", "max_completion_tokens")
_LOGPROBS = ("logprobs", "top_logprobs")
_TOKENS = 2  # of an answer with recorded log-probabilities: the first may be blank


def request_key(body: Mapping[str, Any]) -> str:
    """A digest of the parts of a request that determine its answer."""
    text = json.dumps([body.get(name) for name in (*_KEYED, *_LOGPROBS)], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:24]


def recorded_line(body: Mapping[str, Any], completion: Mapping[str, Any]) -> str:
    """A request and its completion as one line of JSON for `replay`."""
    choice, usage = completion["choices"][0], completion["usage"]
    tokens = (choice.get("logprobs") or {}).get("content") or []
    answer = {
        "content": choice["message"]["content"],
        "finish_reason": choice["finish_reason"],
        "logprobs": [
            {**_logprob(token), "top_logprobs": list(map(_logprob, token["top_logprobs"]))}
            for token in tokens[:_TOKENS]
        ],
        **{name: usage[name] for name in ("prompt_tokens", "completion_tokens")},
    }
    pair = [request_key(body), answer]
    return json.dumps(pair, ensure_ascii=False, separators=(",", ":")) + "\n"


def replay(path: Path, missing: list[str]) -> Callable[[ChatRequest], Reply]:
    """A responder that replays a recording and collects missing prompts."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    answers = {key: Answer(**answer) for key, answer in map(json.loads, lines)}

    def respond(request: ChatRequest) -> Reply:
        answer = answers.get(request_key(request.body))
        if answer is None:
            missing.append(request.text)
            return error(400, "The recording has no such prompt.")
        return answer

    return respond


def _logprob(token: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": token["token"], "logprob": round(token["logprob"], 4)}
