"""The HTTP edge: sockets and HTTP in `http`, routing in `handler`, keys and deadlines in `admission`."""
