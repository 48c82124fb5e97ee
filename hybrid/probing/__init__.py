"""Measures a model on this machine in processes of its own, and keeps what was measured."""
