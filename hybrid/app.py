"""The composition root: builds every part from the plan, starts them in order and stops them in reverse.

Order of starting: bind the port (so that a taken port costs no model load), start processes, wait until warm, ready.
Order of stopping: ready off, drain delay, refuse new work, finish what was accepted, stop processes, close the port.
"""

import asyncio
import gc
import logging
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from hybrid.clock import MonotonicClock
from hybrid.config import HttpLimits, ModelSettings, ServerSettings
from hybrid.errors import StartupError
from hybrid.frontend.admission import Admission
from hybrid.frontend.handler import Handler
from hybrid.frontend.http import HttpServer
from hybrid.frontend.listen import affordable_bodies
from hybrid.frontend.models_api import ModelsApi
from hybrid.frontend.ops import Operations
from hybrid.observe import Observer
from hybrid.serving.hangup import Hangup, Reread
from hybrid.serving.lives import Tools
from hybrid.serving.manager import Manager
from hybrid.serving.model import ServedModel
from hybrid.serving.opening import Opening, PlanFor
from hybrid.serving.replan import Standing
from hybrid.serving.repository import Repository
from hybrid.serving.signals import Signals, before
from hybrid.serving.sources import ModelSources
from hybrid.serving.stats import encoded_plans
from hybrid.serving.watch import watch
from hybrid.telemetry.logs import LogHub
from hybrid.telemetry.metrics import render

if TYPE_CHECKING:
    from hybrid.frontend.grpc import GrpcServer

log = logging.getLogger("hybrid.app")

_LAG_PROBE_S = 0.1
_ECHO_S = 0.1
_STOP_PROCESSES_S = 3.0
_GRPC_PORT = 8001

#: Called with the ports of HTTP and of gRPC.
OnReady = Callable[[int, int | None, Sequence[ModelSettings]], None]


class ForcedExit(StartupError):
    """It ended without having answered everything: a second signal came, or the time for draining was over."""


class Blueprint(Struct, frozen=True):
    """What to build: settings, where models come from, what the server starts with, and how later ones are planned."""

    server: ServerSettings
    sources: ModelSources
    opening: Opening
    plan: PlanFor
    standing: Standing = Standing()
    reread: Callable[[], Reread] | None = None  # for SIGHUP
    poll_s: float = 0.0
    strict: bool = False


class App:
    """One server. `run` starts it, serves until a signal, and stops it; nothing is left behind however it ends."""

    def __init__(self, blueprint: Blueprint, hub: LogHub) -> None:
        self._blueprint = blueprint
        self._hub = hub
        self._clock = MonotonicClock()
        self._state, self._why = "starting", "models are loading"
        self._signals: list[str] = []
        self._signalled_at = 0.0
        self._signalled, self._forced = asyncio.Event(), asyncio.Event()
        self.port = 0
        self.grpc_port: int | None = None
        self._lag_timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Future[None] | None = None

    async def run(self, on_ready: OnReady) -> None:
        """Serve until SIGTERM or SIGINT; `on_ready` is called with ports and models once these are warm.

        Raises:
            StartupError: it cannot start; nothing is left running.
            ForcedExit: a second signal came while it was draining, or the drain time ended before the requests did.
        """
        loop = asyncio.get_running_loop()
        signals = Signals(loop)
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signals.hear(number, partial(self._on_signal, number))
            self._build(loop)
            Hangup(loop, self._manager, self._blueprint.reread, partial(self._on_signal, signal.SIGHUP)).listen(signals)
            await self._run(on_ready)
        finally:
            signals.close(ending=bool(self._signals))

    async def _run(self, on_ready: OnReady) -> None:
        server = self._blueprint.server
        try:
            self.port = await self._http.start(server.host, server.port, server.tls)
            if self._grpc is not None:
                self.grpc_port = await self._grpc.start(server.host, grpc_port(server), server.tls)
            self._probe_lag()
            if await before(self._signalled.wait(), self._wait_ready()):
                on_ready(self.port, self.grpc_port, [model.settings for model in self._repository])
                await self._signalled.wait()
            if not await before(self._forced.wait(), self._stop()):
                raise ForcedExit(f"{self._signals[1]} received while draining: stopped at once")
        finally:
            await self._kill()

    # Building ------------------------------------------------------------------------------------------------------

    def _build(self, loop: asyncio.AbstractEventLoop) -> None:
        blueprint = self._blueprint
        self._loop = loop
        self._repository = Repository()
        self._manager = self._make_manager(loop)
        self._operations = Operations(
            snapshot=lambda: self._observer.encoded(),
            metrics=lambda: render(self._observer.snapshot()),
            plan=lambda: encoded_plans(self._repository, self._clock()),
            loop=loop,
        )
        machine = blueprint.opening.prepared.machine
        admission = Admission(blueprint.server)
        limits = affordable_bodies(blueprint.server.http, machine.memory_limit_bytes)
        models_api = ModelsApi(self._manager, admission, loop)
        self._handler = Handler(self._repository, admission, models_api, self._operations, loop)
        self._http = HttpServer(self._handler, limits)
        self._grpc = _grpc_server(blueprint.server, limits, self._repository, self._manager, admission, self._http)
        self._observer = Observer(
            self._repository,
            self._manager,
            self._http,
            machine,
            lambda: (self._state, self._why),
            self._inflight,
            self._clock,
        )

    def _make_manager(self, loop: asyncio.AbstractEventLoop) -> Manager:
        blueprint, hub, clock = self._blueprint, self._hub, self._clock
        tools = Tools(
            plan=lambda models, by: blueprint.plan(models, profile=by.profile, flags=by.overrides).plans,
            make=lambda settings, plan, counters: ServedModel(settings, plan, hub, loop, clock, counters),
            clock=clock,
            settled=_tidy,
            drain_timeout_s=blueprint.server.drain_timeout_s,
            max_timeout_s=blueprint.server.max_timeout_s,
        )
        manager = Manager(blueprint.sources, self._repository, tools, blueprint.standing)
        opening = blueprint.opening
        manager.begin(list(zip(opening.models, opening.prepared.plans, strict=True)), opening.broken)
        return manager

    # Life ----------------------------------------------------------------------------------------------------------

    async def _wait_ready(self) -> None:
        blueprint = self._blueprint
        await self._manager.start_all(blueprint.opening.stamps, blueprint.strict)
        _tidy()
        self._state, self._why = "ready", ""
        if blueprint.poll_s:
            self._watching = asyncio.ensure_future(watch(self._manager, blueprint.sources, blueprint.poll_s))

    def _on_signal(self, number: signal.Signals) -> None:
        now = self._clock()
        # `timeout` and some supervisors signal the process and then its group: one wish, heard twice.
        echo = number.name in self._signals and now - self._signalled_at < _ECHO_S
        if not echo:
            (self._forced if self._signals else self._signalled).set()
            self._signals.append(number.name)
            self._signalled_at = now

    async def _stop(self) -> None:
        """Drain: every accepted request is answered, unless the time limit passes."""
        server, was_ready = self._blueprint.server, self._state == "ready"
        self._state, self._why = "draining", f"{self._signals[0]} received"
        self._handler.leaving = True
        if self._grpc is not None:
            self._grpc.service.leaving = True
        log.info("%s: draining, at most %g s", self._signals[0], server.drain_delay_s + server.drain_timeout_s)
        await self._stop_changes()
        if was_ready:  # else nobody sends anything yet
            await asyncio.sleep(server.drain_delay_s)
        self._handler.draining = True
        if self._grpc is not None:
            self._grpc.begin_drain(server.drain_timeout_s + _STOP_PROCESSES_S)
        self._http.stop_accepting()
        self._http.begin_drain()
        self._operations.close()
        ends_at = self._clock() + server.drain_timeout_s
        self._manager.drain()
        # Polled, because an event would have to be set on the hot path.
        while (self._inflight() or self._http.unread()) and self._clock() < ends_at:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        late, unread = self._inflight(), self._http.unread()
        grace_s = 0.0 if late else _STOP_PROCESSES_S
        await self._manager.stop(grace_s)
        await asyncio.gather(self._http.close(0.5), *([self._grpc.close(0.5)] if self._grpc is not None else ()))
        self._state = "stopped"
        if late or unread:
            limit = f"drain_timeout_s = {server.drain_timeout_s:g}"
            left = [f"{late} requests were not done"] * bool(late) + [f"{unread} answers were not read"] * bool(unread)
            raise ForcedExit(f"{' and '.join(left)} when the time for draining was over ({limit})")
        log.info("drained in %.1f s", self._clock() - self._signalled_at)

    async def _stop_changes(self) -> None:
        """Let the served models stay as they are; a load that is under way is given up."""
        if self._watching is not None:
            self._watching.cancel()
        await self._manager.close()

    def _inflight(self) -> int:
        return self._http.stats().inflight + (self._grpc.inflight if self._grpc is not None else 0)

    async def _kill(self) -> None:
        """End whatever still runs; a no-op after a clean stop."""
        await self._http.close(0.0)
        if self._grpc is not None:
            await self._grpc.close(0.0)
        self._handler.close()
        await self._stop_changes()
        await self._manager.stop(0.0)
        if self._lag_timer is not None:
            self._lag_timer.cancel()

    def _probe_lag(self, due: float = 0.0) -> None:
        now = self._clock()
        if due:
            self._observer.loop_lag.observe(max(0.0, now - due))
        self._lag_timer = self._loop.call_later(_LAG_PROBE_S, self._probe_lag, now + _LAG_PROBE_S)


def _tidy() -> None:
    """Collect what models have left that are gone, and have the collector look seldom, and never at what stays.

    A request leaves no reference cycle behind.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _grpc_server(
    server: ServerSettings,
    limits: HttpLimits,
    repository: Repository,
    manager: Manager,
    admission: Admission,
    http: HttpServer,
) -> "GrpcServer | None":
    if grpc_port(server) < 0:
        return None
    # Costs 14 MiB and seven threads, which is for those to save who switch it off.
    from hybrid.frontend.grpc import GrpcServer
    from hybrid.frontend.grpc_service import Service

    return GrpcServer(Service(repository, manager, admission, limits.max_body_bytes), limits, http)


def serve(blueprint: Blueprint, hub: LogHub, on_ready: OnReady) -> None:
    """Run a server in this process until it is told to stop.

    Raises:
        StartupError: it cannot start, or stopped without having answered everything.
    """
    import uvloop  # a client of this package does not need it

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(App(blueprint, hub).run(on_ready))


def grpc_port(server: ServerSettings) -> int:
    """Return the port for gRPC, -1 for none. Who asks for any free port for HTTP must not collide on the other one."""
    if server.grpc_port is not None:
        return server.grpc_port
    return _GRPC_PORT if server.port else 0
