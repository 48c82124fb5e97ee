"""Which models are served: started, loaded, loaded again and unloaded while others serve.

The one owner of what is served. A load starts the new processes beside the old ones, waits until they are warm, lets
the repository bind new requests to them in one step, and only then lets the old ones finish what they have. Operations
run one after the other, so that there is at most one model too many at any time. Knows no protocol.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from msgspec import Struct

from hybrid.config import ModelSettings
from hybrid.errors import HybridError, LoadFailed, NotFound, NotReady, QueueFull, StartupError
from hybrid.planner.types import Plan
from hybrid.protocol.oip_meta import IndexEntry
from hybrid.serving.beside import beside
from hybrid.serving.counters import Counters, Ledger
from hybrid.serving.model import ServedModel
from hybrid.serving.repository import Repository
from hybrid.serving.sources import ModelSources, Stamp

log = logging.getLogger("hybrid.serving")

_MAX_WAITING: Final = 32
_STOP_PROCESSES_S: Final = 3.0
_POLL_S: Final = 0.01


class Tools(Struct, frozen=True):
    """What a manager needs to be given. `settled` is called after models have come or gone."""

    plan: Callable[[Sequence[ModelSettings]], tuple[Plan, ...]]
    make: Callable[[ModelSettings, Plan, Counters], ServedModel]
    clock: Callable[[], float]
    settled: Callable[[], None]
    drain_timeout_s: float


class Manager:
    """Starts and stops the models of a repository. Methods are called from the event loop."""

    def __init__(self, sources: ModelSources, repository: Repository, tools: Tools) -> None:
        self.ledger = Ledger()
        self.read: dict[str, Stamp] = {}  # by name: the files as they were when it was last loaded, or tried
        self.asleep: set[str] = set()  # unloaded on request: a change of their files does not wake them
        self._sources = sources
        self._repository = repository
        self._tools = tools
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._alive: dict[ServedModel, str] = {}

    # Start and end -------------------------------------------------------------------------------------------------

    def begin(self, models: Sequence[tuple[ModelSettings, Plan]], broken: dict[str, str]) -> None:
        """Publish the models that the server starts with; requests for them are told to come back until they run."""
        by_name: dict[str, list[ServedModel]] = {}
        for settings, plan in models:
            by_name.setdefault(settings.name, []).append(self._make(settings, plan, ""))
        for name, versions in by_name.items():
            self._repository.publish(name, versions)
        for name, reason in broken.items():
            self._repository.note(name, "UNAVAILABLE", reason)

    async def start_all(self, stamps: dict[str, Stamp], strict: bool = False) -> None:
        """Start them together and wait until they are warm. A model that nobody named may fail: the others are served.

        Raises:
            StartupError: a named model cannot start, or any if `strict`, or all.
        """
        self.read = dict(stamps)
        models = list(self._repository)
        for model in models:
            model.start()
        async with self._turn:
            failures = await asyncio.gather(*(self._started(model, strict) for model in models))
        if models and all(failures):
            raise StartupError(f"no model can be served; {failures[0]}")

    async def stop(self, timeout_s: float) -> None:
        """End the processes of all models, also of those that are coming or going."""
        await self.close()
        await asyncio.gather(*(model.stop(timeout_s) for model in self._alive))

    async def close(self) -> None:
        """Give up what is being loaded or unloaded, and refuse more of it. What is served stays as it is."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drain(self) -> None:
        """Let no request wait for company any more."""
        for model in self._alive:
            model.drain()

    # Operations ----------------------------------------------------------------------------------------------------

    async def load(self, name: str) -> None:
        """Load a model as its files are now, and return when what it replaces is gone. Goes on if the caller leaves.

        Raises:
            NotFound: no such model.
            LoadFailed: it cannot be loaded; what was served before still is.
            NotReady: the server is stopping.
            QueueFull: too many loads and unloads wait for their turn.
        """
        await self._operate(self._load(name))

    async def unload(self, name: str) -> None:
        """Serve a model no more, all versions of it, and return when its processes are gone.

        New requests are refused at once, those that were accepted are answered. It stays away until it is loaded.

        Raises:
            NotFound: no such model.
            NotReady: the server is stopping.
            QueueFull: too many loads and unloads wait for their turn.
        """
        await self._operate(self._unload(name, "unloaded"))

    async def remove(self, name: str) -> None:
        """Unload a model whose files are gone, and forget it.

        Raises:
            NotReady, QueueFull: as `unload`.
        """
        try:
            await self._operate(self._unload(name, "its folder was removed"))
        except NotFound:
            log.info("%s was not loaded when its folder was removed", name)
        self._repository.forget(name)
        self.asleep.discard(name)
        self.read.pop(name, None)

    async def index(self) -> list[IndexEntry]:
        """Return what is served and what may be loaded.

        Raises:
            ConfigError: the repository cannot be read.
        """
        names = await asyncio.to_thread(self._sources.names)
        entries = self._repository.index()
        known = {entry.name for entry in entries}
        return entries + [IndexEntry(name, "", "UNAVAILABLE", "not loaded") for name in names if name not in known]

    # For the observer ----------------------------------------------------------------------------------------------

    def alive(self) -> list[tuple[ServedModel, str]]:
        """Return every model that has processes; the word says which part: "" served, "next" starting, "last" going."""
        return list(self._alive.items())

    # Inside --------------------------------------------------------------------------------------------------------

    async def _operate(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed or len(self._tasks) >= _MAX_WAITING:
            work.close()
            if self._closed:
                raise NotReady("the server is stopping and changes no models")
            raise QueueFull(f"{_MAX_WAITING} loads and unloads wait for their turn", 10.0)
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        await asyncio.wait((task,))
        if task.cancelled():
            raise NotReady("the server is stopping: the operation was given up")
        task.result()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have left; what went wrong was logged

    async def _load(self, name: str) -> None:
        async with self._turn:
            began = self._tools.clock()
            self.asleep.discard(name)
            others = [model for model in self._repository if model.name != name]
            try:
                fresh = await self._fresh(name, others)
            except NotFound:
                raise
            except (HybridError, OSError) as error:
                raise self._failed(name, error) from error
            old = self._repository.publish(name, fresh)
            self._alive.update(dict.fromkeys(fresh, ""))
            self._inherit(name)
            took_s = self._tools.clock() - began
            versions = ", ".join(model.version for model in fresh)
            log.info("%s: version %s %s in %.1f s", name, versions, "took over" if old else "loaded", took_s)
            await self._retire(old)

    async def _fresh(self, name: str, others: Sequence[ServedModel]) -> list[ServedModel]:
        """Read, plan and start all wanted versions of a model, one after the other; all are warm, or none is left."""
        served = [(model.settings, model.plan) for model in others]
        planned = await asyncio.to_thread(self._planned, name, served)
        if name not in (model.name for model in self._repository):
            self._repository.note(name, "LOADING", "it is being loaded")
        fresh: list[ServedModel] = []
        warm = False
        try:
            for settings, plan in planned:
                fresh.append(self._make(settings, plan, "next"))
                fresh[-1].start()
                await fresh[-1].wait_ready()
            warm = True
        finally:
            if not warm:
                await self._end(fresh, 0.0)
        return fresh

    def _planned(self, name: str, served: Sequence[tuple[ModelSettings, Plan]]) -> list[tuple[ModelSettings, Plan]]:
        """Runs in a thread: it reads files."""
        self.read[name] = self._sources.stamp(name)
        wanted = self._sources.settings(name)
        plans = self._tools.plan([*(settings for settings, _ in served), *wanted])
        running, proposed = [plan for _, plan in served], plans[: len(served)]
        fitted = [beside(plan, running, proposed) for plan in plans[len(served) :]]
        return list(zip(wanted, fitted, strict=True))

    def _failed(self, name: str, error: Exception) -> LoadFailed:
        serving = any(model.name == name for model in self._repository)
        log.error("%s cannot be loaded%s: %s", name, ", the one before serves on" if serving else "", error)
        self._repository.note(name, "UNAVAILABLE", f"the last load failed: {error}" if serving else str(error))
        return LoadFailed(f"{error}; the one before serves on" if serving else str(error))

    async def _unload(self, name: str, why: str) -> None:
        async with self._turn:
            loaded = any(model.name == name for model in self._repository)
            if not loaded and name not in await asyncio.to_thread(self._sources.names):
                raise NotFound(f"no model named {name!r} to unload")
            old = self._repository.withdraw(name, "UNLOADING", "it finishes what it has")
            self.asleep.add(name)
            await self._retire(old)
            self._repository.note(name, "UNAVAILABLE", why)
            log.info("%s: %s", name, why)

    async def _retire(self, old: Sequence[ServedModel]) -> None:
        """Let models that get no new requests answer those that they have, then end them."""
        for model in old:
            self._alive[model] = "last"
            model.drain()
        ends_at = self._tools.clock() + self._tools.drain_timeout_s
        # Polled, because an event would have to be set on the hot path.
        while any(model.open_n for model in old) and self._tools.clock() < ends_at:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        await self._end(old, _STOP_PROCESSES_S)

    async def _started(self, model: ServedModel, strict: bool) -> str:
        """Wait for a model of the start; return why it failed, if the server starts without it."""
        try:
            await model.wait_ready()
        except StartupError as error:
            if strict or self._sources.required(model.name):
                raise
            log.error("%s is not served: %s", model.name, error)
            rest = [other for other in self._repository if other.name == model.name and other is not model]
            self._repository.withdraw(model.name, "UNAVAILABLE", str(error))
            if rest:
                self._repository.publish(model.name, rest)
                self._repository.note(model.name, "UNAVAILABLE", f"version {model.version}: {error}")
            await self._end([model], 0.0)
            return str(error)
        return ""

    def _make(self, settings: ModelSettings, plan: Plan, part: str) -> ServedModel:
        model = self._tools.make(settings, plan, self.ledger.of(settings.name, settings.version))
        self._alive[model] = part
        return model

    async def _end(self, models: Sequence[ServedModel], timeout_s: float) -> None:
        await asyncio.gather(*(model.stop(timeout_s) for model in models))
        for model in models:
            del self._alive[model]
            if model.preprocess is not None:
                self.ledger.pool_ended(model.preprocess.stats())
            self._inherit(model.name)
        if models:
            self._tools.settled()

    def _inherit(self, name: str) -> None:
        versions = [model.version for model in self._repository if model.name == name]
        if versions:
            self.ledger.inherit(name, versions, self._repository.get(name).version)
