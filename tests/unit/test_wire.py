"""The packets between the server and its children: every message comes back, and an end that is gone is noticed."""

import socket

import msgspec
import pytest

from hybrid.config import ModelSettings, PreprocessSettings, SimulatedSettings, TextSettings
from hybrid.engines.base import EngineSettings
from hybrid.messages import Signature, TensorSpec
from hybrid.workers import wire

SIGNATURE = Signature((TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "BYTES", (-1,)),), "simulated")
BLOCK = wire.Block("x", "FP32", (2, 3), 64, 24, False)

COMMANDS = [
    wire.StartWorker(
        model=ModelSettings(name="m", simulated=SimulatedSettings(fixed_ms=1.5, faults=True)),
        engine=EngineSettings(threads=2),
        cores=(0, 3),
        slots=(wire.Slabs(5, 6), wire.Slabs(7, 8)),
        max_batch=8,
        warm_length=16,
    ),
    wire.StartPreprocess("m", PreprocessSettings(text=TextSettings()), SIGNATURE, (wire.Slabs(3, 4),)),
    wire.Run(2**40, 1, 8, 65536, (BLOCK, BLOCK)),
    wire.Transform(7, 100, ((0, 10), (64, 3)), (b"\x00\xff", b"")),
    wire.Stop(),
]
EVENTS = [
    wire.Ready(SIGNATURE, max_rows=4, unbatchable="rows differ", warm=((1, 0.5), (8, 1.25)), load_s=3.5),
    wire.StartFailed("zu kurz: é漢"),
    wire.Ran(3, 65536, (BLOCK,), 0.1, 0.2, 0.3),
    wire.RunFailed(3, "input", "text"),
    wire.Transformed(1, 0, (wire.Row((BLOCK,)), wire.Row(error="no image", ours=True)), 0.5, b"abc"),
    wire.Beat(123, 4.5),
]


@pytest.fixture
def ends():
    ours, theirs = wire.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda message: type(message).__name__)
def test_commands_arrive(ends, command):
    ours, theirs = ends
    wire.send(ours, command)
    assert wire.decode_command(wire.receive(theirs)) == command


@pytest.mark.parametrize("event", EVENTS, ids=lambda message: type(message).__name__)
def test_events_arrive(ends, event):
    ours, theirs = ends
    wire.send(theirs, event)
    assert wire.decode_event(ours.recv(wire.MAX_PACKET)) == event


def test_messages_keep_their_borders(ends):
    ours, theirs = ends
    for number in range(20):
        wire.send(ours, wire.Run(number, 0, 1, 0, ()))
    assert [wire.decode_command(wire.receive(theirs)).batch_id for _ in range(20)] == list(range(20))


def test_the_largest_packet_fits(ends):
    ours, theirs = ends
    message = wire.StartFailed("x" * (wire.MAX_PACKET - 100))
    wire.send(theirs, message)
    assert wire.decode_event(ours.recv(wire.MAX_PACKET + 1)) == message


def test_a_command_is_no_event():
    with pytest.raises(msgspec.ValidationError):
        wire.decode_event(wire.encode(wire.Stop()))
    with pytest.raises(msgspec.ValidationError):
        wire.decode_command(wire.encode(wire.Beat(1, 1.0)))


def test_a_closed_end_is_gone_for_reader_and_writer(ends):
    ours, theirs = ends
    wire.send(ours, wire.Stop())
    ours.close()
    assert wire.decode_command(wire.receive(theirs)) == wire.Stop()  # what was sent before still arrives
    with pytest.raises(wire.PeerGone):
        wire.receive(theirs)
    with pytest.raises(wire.PeerGone):
        wire.send(theirs, wire.Beat(1, 1.0))


def test_a_peer_that_does_not_read_blocks_nobody(ends):
    ours, _ = ends

    def flood():
        for _ in range(100_000):
            wire.send(ours, wire.StartFailed("x" * 1000))

    with pytest.raises(BlockingIOError):
        flood()


def test_descriptors_are_not_inherited_by_accident(ends):
    assert not any(end.get_inheritable() for end in ends)
    assert ends[0].gettimeout() == 0.0
    assert ends[1].gettimeout() is None
    assert ends[0].type == socket.SOCK_SEQPACKET
