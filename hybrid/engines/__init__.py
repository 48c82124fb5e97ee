"""Engines, the interface they share, and what surrounds one in a worker process."""
