"""The null workload on Mosec: JSON in, the same number out, batches of up to 32 with 1 ms of waiting."""

from typing import Any

from mosec import Server, Worker  # type: ignore[import-not-found]


class Null(Worker):  # type: ignore[misc]
    """Returns what it gets. Mosec decodes and encodes JSON by default."""

    def forward(self, data: list[Any]) -> list[Any]:
        """Answer a batch."""
        return [{"data": item["data"]} for item in data]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Null, num=1, max_batch_size=32, max_wait_time=1)
    server.run()
