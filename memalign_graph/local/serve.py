"""The process that runs llama.cpp: a script without imports of this package.

It reads one line of JSON (settings) from stdin, writes one line of JSON (its address, or an error)
to stdout, and exits when stdin closes: that happens whenever the parent process ends.
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
    # Requests queue for one slot. Each further slot would process a shared prefix again, and two
    # cores are not faster with two concurrent requests.
    params.n_parallel = 1
    params.n_ctx = settings["window"]
    params.n_threads_http = 32  # the longest queue
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.cache_prompt = True
    params.cache_ram_mib = 512  # about 19,000 tokens of prompts
    return xllamacpp.Server(params)


def main() -> None:
    """Serve until stdin closes."""
    # Ctrl-C in a terminal reaches this process, too: the parent handles it.
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
    # An orderly shutdown waits forever for a running request.
    os._exit(0)


if __name__ == "__main__":
    main()
