"""An evaluation in a process of its own; see `test_evaluation_killed`."""

import multiprocessing
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from memalign_graph.evaluation import Report, evaluate
from tests.conftest import CRITERION

FORKS = multiprocessing.get_context("forkserver")
"""Makes workers in milliseconds, out of a process that has imported all and runs no threads."""

FORKS.set_forkserver_preload(["tests.integration_tests.evaluation.worker"])


def evaluate_alone(given: list[Any], **options: Any) -> Report:
    """Evaluate, a call at a time unless told."""
    settings: dict[str, Any] = {"folds": 3, "resamples": 0, "progress": False, **options}
    return evaluate(CRITERION, given, **settings)


def work(environment: Mapping[str, str], file: Path, given: list[Any], limit: int) -> None:
    """Evaluate, and write down what was found."""
    os.environ.update(environment)
    found = evaluate_alone(
        given,
        model=ChatOpenAI(model="gpt-4.1-mini"),
        embeddings=OpenAIEmbeddings(
            model="text-embedding-3-small", check_embedding_ctx_length=False
        ),
        cache=file,
        max_concurrency=limit,
    )
    out = file.with_name(f"{file.stem}-{os.getpid()}.json")
    out.write_text(found.model_dump_json())
