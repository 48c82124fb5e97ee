"""Changes of what is served, over HTTP: the protocol's repository extension (index, load, unload), and plans.

Owns these paths and their bodies. Must never know how a model is started: it hands names and wishes to the manager.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

from msgspec import DecodeError, Struct, ValidationError, json

from hybrid.config_file import load_settings
from hybrid.errors import BadRequest, ConfigError, HybridError
from hybrid.frontend.admission import Admission
from hybrid.frontend.exchange import Exchange
from hybrid.planner.explain import plan_json
from hybrid.planner.types import PlanOverrides
from hybrid.protocol.oip_meta import encode_index
from hybrid.serving.manager import Manager
from hybrid.serving.replan import Wish

log = logging.getLogger("hybrid.frontend")

T = TypeVar("T", bound=Struct)

#: Parameter of an unload that changes nothing here: no model depends on another.
_NO_EFFECT: Final = frozenset({"unload_dependents"})


class _Body(Struct):
    """Body of any of the three; all of it may be left out."""

    ready: bool = False
    parameters: dict[str, Any] = {}


class _PlanBody(Struct, forbid_unknown_fields=True):
    """Body of a re-plan; all of it may be left out. A number that is null is not fixed any more."""

    model: str | None = None
    plan: dict[str, Any] = {}
    profile: str | None = None


class ModelsApi:
    """Answers `/v2/repository/...` and `POST /hybrid/v1/plan`, later.

    Each request is a task of its own, for it may take minutes.
    """

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
        if segments == ["hybrid", "v1", "plan"] and exchange.method == "POST":
            self._admission.authorise_admin(exchange.headers, exchange.peer)
            self._run(exchange, self._replan(_wish(exchange)))
            return True
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

    async def _replan(self, wish: Wish) -> bytes:
        try:
            done = await self._manager.replan(wish)
        except HybridError as error:
            log.warning("%s: nothing changed: %s", wish.text, error)
            raise
        plans = [plan_json(one.plan) | {"changed": one.changed, "restarted": one.restarted} for one in done]
        return json.encode(plans)

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
    return _decoded(bytes(exchange.body), _Body, "{}")


def _wish(exchange: Exchange) -> Wish:
    body = _decoded(bytes(exchange.body), _PlanBody, '{"model": "minilm", "plan": {"max_batch": 8}}')
    if body.model is not None and body.profile is not None:
        raise BadRequest("profile: is for all models; expected no `model` beside it")
    try:
        overrides = load_settings(PlanOverrides, body.plan, "body", "plan.")
    except ConfigError as error:
        raise BadRequest(str(error)) from None
    back = frozenset(key for key, value in body.plan.items() if value is None)
    return Wish(body.model, overrides, back, body.profile)


def _decoded(body: bytes, form: type[T], example: str) -> T:
    if not body.strip():
        return form()
    try:
        return json.decode(body, type=form)
    except (ValidationError, DecodeError) as error:
        raise BadRequest(f"body: expected an object such as {example}: {error}") from None
