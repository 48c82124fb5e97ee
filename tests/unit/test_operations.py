"""Streams of snapshots: how they begin, and that none begins while the server drains."""

import asyncio

from http_fakes import Client, get

from hybrid.frontend.ops import Operations


async def test_streams_end_when_the_server_drains_and_none_begins():
    operations = Operations(lambda: b"{}", lambda: b"", lambda: b"[]", asyncio.get_running_loop())
    client = Client().send(get("/hybrid/v1/stream"))
    client.waiting[0].give_to(lambda exchange: operations.handle(exchange, ["hybrid", "v1", "stream"]))
    assert client.server.stats().inflight == 1
    operations.close()
    client.send(get("/hybrid/v1/stream") + get("/hybrid/v1/snapshot"))
    for exchange, what in zip(client.waiting[1:], ("stream", "snapshot"), strict=True):
        exchange.give_to(lambda exchange, what=what: operations.handle(exchange, ["hybrid", "v1", what]))
    assert [answer.status for answer in client.responses] == [200, 503, 200]
    assert client.server.stats().inflight == 0
