"""Served models: what a protocol-neutral request goes through between a front end and the batcher."""
