"""The end of a listening socket: no client that believes to be connected is dropped."""

import asyncio
import socket

import pytest
import uvloop

from hybrid.frontend import listen

WELCOME = b"hello"


class Welcome(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(WELCOME)


async def opened():
    """A listener and its address."""
    sock = (await listen.listening_sockets("127.0.0.1", 0))[0]
    address = sock.getsockname()
    listener = listen.Listener(sock, Welcome)
    await listener.open(None, 1.0)
    return listener, address


def connected(address, timeout_s=5.0):
    return socket.create_connection(address, timeout_s)


def test_who_was_connected_before_the_end_is_served():
    async def ends():
        listener, address = await opened()
        clients = [connected(address) for _ in range(50)]  # the loop has seen none of them
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            connected(address)
        for client in clients:
            with client:
                assert await asyncio.to_thread(client.recv, 100) == WELCOME

    uvloop.run(ends())


def test_none_is_connected_between_the_last_look_and_the_end(monkeypatch):
    """Or the end would drop it: the process may wait for a CPU there, for as long as a client needs to come."""
    seen = []

    async def ends():
        listener, address = await opened()
        look = listener._take_waiting

        def interrupted():
            look()
            with pytest.raises(TimeoutError) as caught:
                connected(address, 0.2)
            seen.append(caught.type)

        monkeypatch.setattr(listener, "_take_waiting", interrupted)
        listener.close()

    uvloop.run(ends())
    assert seen
