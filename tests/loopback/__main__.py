"""The server as a process of its own: `python -m tests.loopback --port 8123`."""

import argparse
import signal
import sys
import threading

from tests.loopback.server import LoopbackServer


def main() -> None:
    """Serve with the default responder until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m tests.loopback", description=main.__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before a chat answer")
    parser.add_argument("--token-latency", type=float, default=0.0, help="seconds for each token")
    parser.add_argument("--embedding-latency", type=float, default=0.0, help="seconds a batch")
    options = parser.parse_args()
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    with LoopbackServer(port=options.port) as server:
        server.latency_s = options.latency
        server.token_latency_s = options.token_latency
        server.embedding_latency_s = options.embedding_latency
        sys.stdout.write(f"{server.base_url}\n")
        sys.stdout.flush()
        stopping.wait()


if __name__ == "__main__":
    main()
