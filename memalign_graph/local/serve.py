"""The process that runs llama.cpp; `server.py` starts it as a script, so it imports none of us.

It reads one line of JSON (its settings) from stdin, writes one line of JSON (its address, or an
error) to stdout, and ends when stdin does, which is when its parent ends, however that happens.
"""

import json
import os
import signal
import sys
from typing import Any


def serve(settings: dict[str, Any]) -> Any:
    """Start llama.cpp's server on a free port of 127.0.0.1."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.model_alias = {settings["name"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["key"]]
    params.endpoint_slots = False
    params.ui = False
    params.verbosity = 1
    # One slot: requests queue. Slots of their own would each read a shared prompt prefix anew,
    # and two cores are no faster with two requests at once.
    params.n_parallel = 1
    params.n_ctx = settings["window"]
    params.n_threads_http = 32  # how many may wait in line
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.cache_prompt = True
    params.cache_ram_mib = 512  # about 19,000 tokens of prompts that may come again
    return xllamacpp.Server(params)


def main() -> None:
    """Serve until stdin ends."""
    # Ctrl-C in a terminal reaches this process too; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        server = serve(json.loads(sys.stdin.readline()))
    except (ImportError, RuntimeError) as error:
        answer = {"error": str(error)}
    else:
        answer = {"address": server.listening_address}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    if "address" in answer:
        sys.stdin.read()
    # Taking the server down in order waits for ever for a request at work.
    os._exit(0)


if __name__ == "__main__":
    main()
