"""Load and measurement from outside: when to send, the client that sends, and what its numbers mean."""
