"""A gRPC call by hand, for what no library sends: a deadline that the client itself does not keep."""

import socket
import struct
import time

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1


def call(port: int, method: str, message: bytes, timeout: str, give_up_s: float) -> float:
    """Send one call with a `grpc-timeout` and read on without ever resetting it; return when the server ended it."""
    with socket.create_connection(("127.0.0.1", port), timeout=give_up_s) as sock:
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/inference.GRPCInferenceService/{method}",
            ":authority": "t",
            "te": "trailers",
            "content-type": "application/grpc",
            "grpc-timeout": timeout,
        }
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
        data = b"\0" + struct.pack(">I", len(message)) + message
        sock.sendall(
            _PREFACE
            + _frame(_SETTINGS, 0, 0, b"")
            + _frame(_HEADERS, _END_HEADERS, 1, block)
            + _frame(_DATA, _END_STREAM, 1, data)
        )
        began = time.monotonic()
        stream = sock.makefile("rb")
        while True:
            head = stream.read(9)
            assert len(head) == 9, "the server closed the connection"
            length, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
            payload = stream.read(length)
            if kind == _SETTINGS and not flags & _ACK:
                sock.sendall(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                sock.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind == _RESET or (kind == _HEADERS and flags & _END_STREAM):
                return time.monotonic() - began
            assert kind != _GOAWAY, payload


def _text(text: str) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload
