"""Measurements: the server against the bare engine, against peers, and its parts alone. Never imported by hybrid."""
