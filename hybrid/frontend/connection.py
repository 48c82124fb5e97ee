"""One client connection: requests to the handler, answers back in request order, and how a connection ends.

Owns pipelining, backpressure and closing. It acts only through its transport and reads no clock but the one handed
in, so tests drive it with bytes and a fake transport. Must never know models, batches or paths.

After a refusal the connection lingers: input is dropped for a bounded time, because closing a socket with unread input
resets it and the client would lose the answer.
"""

import asyncio
import logging
import math
from collections import deque
from typing import Final, cast

from hybrid.errors import HybridError, NotReady, SlowClient
from hybrid.frontend import reply
from hybrid.frontend.exchange import Exchange
from hybrid.frontend.parser import BODY, DROP, HEAD, IDLE, RequestParser
from hybrid.frontend.shared import Shared
from hybrid.frontend.wire import Receiver, Wire

log = logging.getLogger(__name__)

#: Segments above this size are parsed in slices. Parsing all others in two would cost 3 µs, a third of what HTTP takes.
_SLICE: Final = 16 * 1024
#: Inflated bytes of compressed bodies after which others get a turn of the loop.
_UNPACKED_PER_TURN: Final = 1024 * 1024
_STREAM_LIMIT_BYTES: Final = 1024 * 1024
_LINGER_S: Final = 10.0
_LINGER_BYTES: Final = 256 * 1024 * 1024
_OVERLOAD_LINGER_S: Final = 1.0
#: Whoever has just connected is about to send: closing on it at a drain would look like a lost request.
NEW_S: Final = 0.5


class Connection(Receiver):
    """The asyncio protocol of one client. `deadline` is when the sweeper must call `expire`.

    Attributes of a connection are kept without __slots__: there is one per client, not per request.
    """

    wire: Wire

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._parser = RequestParser(shared.limits, self, self._admit, shared.receiving)
        self._queue: deque[Exchange] = deque()  # handed out; answers leave from the left
        self._held: deque[Exchange] = deque()  # complete, but too many are out already
        self._backlog: memoryview | None = None  # received, not parsed yet
        self._counted_bytes = self._dropped_bytes = 0  # counted: of an unfinished body, as in shared
        self._feeding = self._advancing = False  # inside the parser, inside the answer loop: neither may be re-entered
        self._closing = self._eof = False
        self.deadline = math.inf
        self._new_until = 0.0

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, or say 503 at once when there are too many connections already."""
        shared = self._shared
        self.wire = Wire(cast(asyncio.Transport, transport), shared.traffic)
        now = shared.clock()
        if shared.take_connection(self):
            self._new_until = now + NEW_S
            self.deadline = now + shared.limits.idle_timeout_s
        elif self in shared.overload:
            self._refuse(NotReady(f"too many connections: this server takes {shared.max_connections}"))
            self.deadline = now + _OVERLOAD_LINGER_S
        else:
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Parse what came and hand out the requests in it."""
        self._shared.traffic.received_bytes_n += len(data)
        if self._parser.phase == DROP:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > _LINGER_BYTES:
                self.abort()
            return
        if self._backlog is not None or len(data) > _SLICE:
            self._backlog = memoryview(data if self._backlog is None else bytes(self._backlog) + data)
        else:
            self._feed(data)
        self._settle()

    @property
    def room(self) -> memoryview | None:
        """Where the next bytes of a large body belong."""
        return self._parser.room

    def room_filled(self, size: int) -> None:
        """So many bytes were received into `room`."""
        self._shared.traffic.received_bytes_n += size
        self._feeding = True
        self._parser.filled(size, self._shared.clock())
        self._fed(None)
        self._settle()

    def eof_received(self) -> bool:
        """The client will send no more: it left, or only closed its sending half. Open requests still get answers."""
        self._eof = True
        self._stop_parsing()
        if self._closing or not (self._queue or self._held) or not self.wire.can_half_close:
            return False
        self._shared.watch_half_closed(self)
        return True

    def pause_writing(self) -> None:
        """The client does not read its answers: stop taking its requests."""
        self.wire.blocked = True
        self.wire.shrank()
        self._settle()
        self.deadline = self._shared.clock() + self._shared.limits.write_timeout_s

    def resume_writing(self) -> None:
        """The client reads again."""
        self.wire.blocked = False
        if not self._advancing and not self._feeding:
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget everything; tell the handlers whose answers nobody waits for any more."""
        shared = self._shared
        shared.connections.discard(self)
        shared.overload.discard(self)
        self._closing = True
        self.deadline = math.inf
        self._stop_parsing()
        shared.body_bytes -= sum(len(exchange.body) for exchange in self._held)
        lost = [exchange for exchange in self._queue if not exchange.done]
        self._queue.clear()
        self._held.clear()
        for exchange in lost:
            self._done(exchange)
            shared.disconnects_n += 1
            exchange.disconnected = True
            exchange.say_disconnected()

    # Called by the server.

    @property
    def busy(self) -> bool:
        """Whether something would be lost by closing now: a request on its way in or out, or an unsent answer."""
        return self.wire.unsent_bytes > 0 or (not self._closing and (self._has_requests() or self._is_new()))

    def close_if_idle(self) -> None:
        """Close unless a request is open."""
        if not self._closing and not self._has_requests() and not self._is_new():
            self._close()

    def end_streams(self) -> None:
        """End all answers of unknown length properly; their writers are told."""
        for exchange in [e for e in self._queue if e.streaming is not None and not e.done]:
            exchange.say_disconnected()
            self.stream(exchange, b"" if exchange.http10 else reply.LAST_CHUNK, last=True)

    def abort(self) -> None:
        """Drop the client now."""
        self._closing = True
        self.deadline = math.inf
        self.wire.abort()

    def expire(self, now: float) -> None:
        """The deadline has passed."""
        limits = self._shared.limits
        phase = self._parser.phase
        if self.wire.unsent_bytes and (self.wire.blocked or self._closing or phase == IDLE):
            if self.wire.shrank():
                self.deadline = now + limits.write_timeout_s  # slow, but reading
                return
            self._shared.timeouts_n += 1
            self.abort()
        elif self._closing:
            self.abort()
        elif phase == IDLE:
            self._close()
        else:
            self._shared.timeouts_n += 1
            part, limit_s = ("headers", limits.header_timeout_s) if phase == HEAD else ("body", limits.body_timeout_s)
            self._refuse(SlowClient(f"{part}: expected within {limit_s:g} s"))
            self._settle()

    # Called by the watcher of half-closed connections.

    def waits_half_closed(self) -> bool:
        """Whether the client, which has ended its stream, still waits for an answer."""
        return not self._closing and bool(self._queue)

    def probe(self) -> bool:
        """Send an interim answer if HTTP allows one now; true when it was sent."""
        if self._queue[0].http10 or self._queue[0].streaming is not None:
            return False
        self.wire.add([reply.CONTINUE])
        self.wire.flush()
        return True

    def was_reset(self) -> bool:
        """Whether the client's kernel has reset the connection."""
        return self.wire.was_reset()

    # Called by exchanges.

    @property
    def peer(self) -> str:
        """Address of the client as host:port."""
        return self.wire.peer

    def answered(self, exchange: Exchange) -> None:
        """An exchange has its answer; it leaves when all before it have left."""
        self._done(exchange)
        if self._queue[0] is exchange and not self._advancing:
            self._advance()

    def begin_stream(self, exchange: Exchange, head: bytes, *, last: bool) -> None:
        """Send the head of an answer in parts."""
        self._shared.responses_n[200] += 1
        self.stream(exchange, head, last=last)

    def stream(self, exchange: Exchange, data: bytes, *, last: bool) -> None:
        """Send a part of an answer, or keep it until it is its turn. A client that does not read is dropped."""
        if self._closing or exchange.done or exchange.streaming is None:
            return
        exchange.streaming.append(data)
        if last:
            self._done(exchange)
        if self._queue[0] is exchange and not self._advancing:
            self._advance()
        if max(sum(map(len, exchange.streaming)), self.wire.unsent_bytes) > _STREAM_LIMIT_BYTES:
            log.warning("dropped %s: it does not read its stream", self.peer)
            self.abort()

    # Requests in.

    def _has_requests(self) -> bool:
        return bool(self._queue or self._held or self._backlog) or self._parser.phase in (HEAD, BODY)

    def _is_new(self) -> bool:
        return self._new_until > 0.0 and self._shared.clock() < self._new_until

    def _feed(self, data: bytes | memoryview) -> None:
        self._feeding = True
        self._new_until = 0.0
        self._fed(self._parser.feed(data, self._shared.clock()))

    def _fed(self, error: HybridError | None) -> None:
        if error is not None:
            self._shared.bad_requests_n += 1
            self._refuse(error)
        self._count_body()
        if self._parser.phase == BODY and not self._shared.has_room(self._parser.missing_bytes):
            self._refuse(self._shared.refuse_body())
        self._feeding = False
        self.wire.flush()

    def _feed_backlog(self) -> None:
        """Parse slice by slice until more would be out than allowed, or others should have a turn."""
        parser = self._parser
        pause_at = parser.unpacked_bytes + _UNPACKED_PER_TURN
        while self._backlog is not None and not (self._held or self.wire.blocked or self._closing):
            if parser.unpacked_bytes > pause_at:
                self._shared.call_soon(self._settle)
                return
            size = parser.slice_bytes
            data, rest = self._backlog[:size], self._backlog[size:]
            self._feed(data)
            self._backlog = rest if rest and parser.phase != DROP else None

    def _stop_parsing(self) -> None:
        if self._parser.phase in (HEAD, BODY):
            self._shared.disconnects_n += 1
        self._parser.close()
        self._backlog = None
        self._count_body()

    def _count_body(self) -> None:
        change = self._parser.held_bytes - self._counted_bytes
        if change:
            self._counted_bytes += change
            self._shared.body_bytes += change

    def _refuse(self, error: HybridError) -> None:
        self._admit(self._parser.refusal(error))
        self._count_body()

    def _admit(self, exchange: Exchange) -> None:
        """Hand out a complete request, or hold it while too many are out."""
        if self._closing:
            return
        shared = self._shared
        if exchange.body:
            if self._counted_bytes:
                self._count_body()  # it was counted as a body on its way
            if not shared.has_room(len(exchange.body)):
                exchange.body, exchange.refusal = b"", shared.refuse_body()
            shared.body_bytes += len(exchange.body)
        if self._held or self.wire.blocked or len(self._queue) >= self._shared.limits.max_pipelined:
            self._held.append(exchange)
        else:
            self._hand_out(exchange)

    def _hand_out(self, exchange: Exchange) -> None:
        shared = self._shared
        self._queue.append(exchange)
        shared.inflight += 1
        if exchange.refusal is not None:
            exchange.fail(exchange.refusal)
            return
        shared.requests_n += 1
        exchange.give_to(shared.handler)

    # Answers out.

    def _done(self, exchange: Exchange) -> None:
        exchange.done = True
        self._shared.inflight -= 1
        self._shared.body_bytes -= len(exchange.body)

    def _advance(self) -> None:
        """Send every answer whose turn it is; hand out what was held because too many were out."""
        self._advancing = True
        queue = self._queue
        while not self._closing:
            if queue and self._send_first(queue[0]):
                continue
            if not self._held or self.wire.blocked or len(queue) >= self._shared.limits.max_pipelined:
                break
            self._hand_out(self._held.popleft())
        self._advancing = False
        if not self._feeding:
            self.wire.flush()
            self._settle()

    def _send_first(self, exchange: Exchange) -> bool:
        """Send what the oldest exchange has to send. True when it is finished and gone from the queue."""
        if exchange.streaming is not None:
            self.wire.add(exchange.streaming)
            exchange.streaming, self.wire.streamed = [], True
        if not exchange.done:
            return False
        self._queue.popleft()
        last = exchange.close_after or (self._shared.draining and not self._has_requests())
        if exchange.answer is not None:
            status, body, content_type, extra = exchange.answer
            self._shared.responses_n[status] += 1
            if last:
                extra += reply.CLOSE
            elif exchange.http10:
                extra += reply.KEEP_ALIVE
            head_only = exchange.method == "HEAD"
            self.wire.streamed = False
            self.wire.add(reply.encode(status, body, content_type, extra, head_only=head_only))
        if last or (self._eof and not self._queue and not self._held):
            self._close(linger=exchange.refusal is not None)
        return True

    # Waiting and ending.

    def _settle(self) -> None:
        """After any change: go on with the backlog, pause or resume reading, set the deadline."""
        if self._feeding:
            return
        if self._backlog is not None:
            self._feed_backlog()
        self.wire.receive_in_place(self.room is not None and self._backlog is None, self)
        if self._closing:
            return
        if self._parser.wants_continue and not self._queue and not self._held:
            self._parser.wants_continue = False
            if not self._parser.held_bytes:
                self.wire.add([reply.CONTINUE])
                self.wire.flush()
        paused = self.wire.blocked or bool(self._held) or self._backlog is not None
        if not self._eof and self.wire.pause(paused):
            self._parser.started_at = self._shared.clock()  # the client could not send meanwhile
        if not self.wire.blocked:  # else it was set when that began
            self._set_deadline()

    def _set_deadline(self) -> None:
        limits = self._shared.limits
        phase = self._parser.phase
        if phase == HEAD and not self.wire.paused:
            self.deadline = self._parser.started_at + limits.header_timeout_s
        elif phase == BODY and not self.wire.paused:
            self.deadline = self._parser.started_at + limits.body_timeout_s
        elif self._queue or self.wire.paused:
            self.deadline = math.inf
        else:
            self.deadline = self._shared.now + limits.idle_timeout_s

    def _close(self, *, linger: bool = False) -> None:
        """End the connection once the answers are sent. Lingering waits until the client has closed."""
        self.wire.flush()
        self._closing = True
        self._parser.close()
        self._count_body()
        self.wire.shrank()
        linger = linger and not self._eof
        self.deadline = self._shared.clock() + (_LINGER_S if linger else self._shared.limits.write_timeout_s)
        self.wire.end(linger=linger)
