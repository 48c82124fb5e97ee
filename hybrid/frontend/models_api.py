"""The protocol's repository extension over HTTP: what may be served, load, unload.

Owns these paths and their bodies. Must never know how a model is started: it hands names to the manager.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from msgspec import DecodeError, Struct, ValidationError, json

from hybrid.errors import BadRequest, HybridError
from hybrid.frontend.admission import Admission
from hybrid.frontend.exchange import Exchange
from hybrid.protocol.oip_meta import encode_index
from hybrid.serving.manager import Manager

log = logging.getLogger("hybrid.frontend")

#: Parameter of an unload that changes nothing here: no model depends on another.
_NO_EFFECT: Final = frozenset({"unload_dependents"})


class _Body(Struct):
    """Body of any of the three; all of it may be left out."""

    ready: bool = False
    parameters: dict[str, Any] = {}


class ModelsApi:
    """Answers `/v2/repository/...`, later: each request is a task of its own, for it may take minutes."""

    def __init__(self, manager: Manager, admission: Admission, loop: asyncio.AbstractEventLoop) -> None:
        self._manager = manager
        self._admission = admission
        self._loop = loop
        self._tasks: set[asyncio.Task[bytes]] = set()

    def handle(self, exchange: Exchange, segments: list[str]) -> bool:
        """Answer if the path is one of ours; return whether it was.

        Raises:
            Unauthorized: the client may not do that.
            MethodNotAllowed: not a POST.
            BadRequest: the body is not what it should be.
        """
        if segments[:2] != ["v2", "repository"]:
            return False
        rest = segments[2:]
        if rest == ["index"]:
            self._admission.authorise(exchange.headers)
            body = _body(exchange)
            self._run(exchange, self._index(body.ready))
        elif len(rest) == 3 and rest[0] == "models" and rest[2] in ("load", "unload"):
            self._admission.authorise_admin(exchange.headers, exchange.peer)
            refuse_overrides(_body(exchange).parameters)
            self._run(exchange, self._change(rest[1], rest[2]))
        else:
            return False
        return True

    async def _index(self, only_ready: bool) -> bytes:
        entries = await self._manager.index()
        return encode_index([entry for entry in entries if entry.state == "READY" or not only_ready])

    async def _change(self, name: str, verb: str) -> bytes:
        await (self._manager.load(name) if verb == "load" else self._manager.unload(name))
        return b"{}"

    def _run(self, exchange: Exchange, work: Coroutine[Any, Any, bytes]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the loop itself would let go of it
        task.add_done_callback(lambda done: self._answer(exchange, done))

    def _answer(self, exchange: Exchange, task: asyncio.Task[bytes]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return  # the loop is closing, and with it the connection
        error = task.exception()
        if error is None:
            exchange.reply(200, task.result())
        elif isinstance(error, HybridError):
            exchange.fail(error)
        else:
            log.error("%s %s failed", exchange.method, exchange.path, exc_info=error)
            exchange.fail(HybridError("internal error; the server's log has more"))


def refuse_overrides(parameters: Iterable[str]) -> None:
    """Refuse parameters of a load or unload that would change what the files say.

    Raises:
        BadRequest: there is one.
    """
    for name in parameters:
        if name not in _NO_EFFECT:
            raise BadRequest(f"parameters.{name[:100]}: not taken; a model is as its files say: change those")


def _body(exchange: Exchange) -> _Body:
    exchange.expect("POST")
    if not exchange.body.strip():
        return _Body()
    try:
        return json.decode(exchange.body, type=_Body)
    except (ValidationError, DecodeError) as error:
        raise BadRequest(f"body: expected an object such as {{}}: {error}") from None
