"""This package and MLflow's MemAlign side by side, on one model server with fixed latency."""
