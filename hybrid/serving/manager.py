"""Which models are served, and by which plans: started, loaded, re-planned and unloaded while others serve.

The one owner of what is served. A load starts the new processes beside the old ones, waits until they are warm, lets
the repository bind new requests to them in one step, and only then lets the old ones finish what they have. Operations
run one after the other, so that there is at most one model too many at any time. Knows no protocol.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from hybrid.config import ModelSettings
from hybrid.errors import BadRequest, HybridError, LoadFailed, NotFound, NotReady, QueueFull, StartupError
from hybrid.planner.types import Plan
from hybrid.protocol.oip_meta import IndexEntry
from hybrid.serving.beside import beside
from hybrid.serving.lives import Birth, Lives, Tools
from hybrid.serving.model import ServedModel
from hybrid.serving.replan import Replanned, Standing, Wish
from hybrid.serving.repository import Repository
from hybrid.serving.sources import ModelSources, Stamp
from hybrid.serving.switch import Switch

log = logging.getLogger("hybrid.serving")

T = TypeVar("T")

_MAX_WAITING: Final = 32


class Manager:
    """Starts and stops the models of a repository. Methods are called from the event loop."""

    def __init__(
        self, sources: ModelSources, repository: Repository, tools: Tools, standing: Standing | None = None
    ) -> None:
        self.standing = standing or Standing()
        self.replans: dict[str, int] = {}  # by outcome
        self._lives = Lives(repository, tools)
        self.ledger = self._lives.ledger
        self.read: dict[str, Stamp] = {}  # by name: the files as they were when it was last loaded, or tried
        self.asleep: set[str] = set()  # unloaded on request: a change of their files does not wake them
        self._sources = sources
        self._repository = repository
        self._tools = tools
        self._begun: list[ServedModel] = []  # what the server starts with
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    # Start and end -------------------------------------------------------------------------------------------------

    def begin(self, models: Sequence[tuple[ModelSettings, Plan]], broken: dict[str, str]) -> None:
        """Publish the models that the server starts with; requests for them are told to come back until they run."""
        by_name: dict[str, list[ServedModel]] = {}
        for settings, plan in models:
            birth = Birth(settings, plan, "planned at start")
            self._begun.append(self._lives.make(birth, ""))
            by_name.setdefault(settings.name, []).append(self._begun[-1])
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
        async with self._turn:
            # The port is open already: a load that was faster has replaced some of them, by others that are warm.
            models = [model for model in self._begun if model in self._lives.parts]
            self._begun.clear()
            for model in models:
                model.start()
            failures = await asyncio.gather(*(self._started(model, strict) for model in models))
        if models and all(failures):
            raise StartupError(f"no model can be served; {failures[0]}")

    async def stop(self, timeout_s: float) -> None:
        """End the processes of all models, also of those that are coming or going."""
        await self.close()
        await asyncio.gather(*(model.stop(timeout_s) for model in self._lives))

    async def close(self) -> None:
        """Give up what is being loaded or unloaded, and refuse more of it. What is served stays as it is."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drain(self) -> None:
        """Let no request wait for company any more."""
        for model in self._lives:
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

    async def replan(self, wish: Wish) -> tuple[Replanned, ...]:
        """Plan anew, and return what came of it for each model that was meant when what was replaced is gone.

        New workers are warm before all that changes comes into force in one step; no request is lost or refused. Where
        only the batcher is concerned, the workers stay.

        Raises:
            NotFound: no such model is served.
            BadRequest: there is no such plan; nothing has changed.
            LoadFailed: new workers cannot be started; nothing has changed.
            NotReady, QueueFull: as `load`.
        """
        try:
            done = await self._operate(self._replan(wish))
        except HybridError as error:
            self._count("refused" if isinstance(error, BadRequest) else "failed")
            raise  # whoever asked says so
        restarted = any(one.restarted for one in done)
        self._count("workers" if restarted else "batcher" if any(one.changed for one in done) else "unchanged")
        return done

    async def index(self) -> list[IndexEntry]:
        """Return what is served and what may be loaded.

        Raises:
            ConfigError: the repository cannot be read.
        """
        names = await asyncio.to_thread(self._sources.names)
        entries = self._repository.index()
        known = {entry.name for entry in entries}
        return entries + [IndexEntry(name, "", "UNAVAILABLE", "not loaded") for name in names if name not in known]

    @property
    def revision(self) -> int:
        """How many re-plans have changed something."""
        return self.replans.get("batcher", 0) + self.replans.get("workers", 0)

    # For the observer ----------------------------------------------------------------------------------------------

    def alive(self) -> list[tuple[ServedModel, str]]:
        """Return every model that has processes; the word says which part: "" served, "next" starting, "last" going."""
        return list(self._lives.parts.items())

    # Inside --------------------------------------------------------------------------------------------------------

    async def _operate(self, work: Coroutine[Any, Any, T]) -> T:
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
        return task.result()

    def _done(self, task: asyncio.Task[Any]) -> None:
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
            except Exception as error:  # also one that nobody foresaw: the model must not be "loading" for ever
                raise self._failed(name, error) from error
            old = self._repository.publish(name, fresh)
            self._lives.served(name, fresh)
            took_s = self._tools.clock() - began
            versions = ", ".join(model.version for model in fresh)
            log.info("%s: version %s %s in %.1f s", name, versions, "took over" if old else "loaded", took_s)
            await self._lives.retire(old, self._tools.max_timeout_s)

    async def _fresh(self, name: str, others: Sequence[ServedModel]) -> list[ServedModel]:
        """Read, plan and start all wanted versions of a model, one after the other; all are warm, or none is left."""
        served = [(model.settings, model.plan) for model in others]
        planned = await asyncio.to_thread(self._planned, name, served)
        if name not in (model.name for model in self._repository):
            self._repository.note(name, "LOADING", "it is being loaded")
        return await self._lives.warm([Birth(settings, plan, "loaded") for settings, plan in planned])

    def _planned(self, name: str, served: Sequence[tuple[ModelSettings, Plan]]) -> list[tuple[ModelSettings, Plan]]:
        """Runs in a thread: it reads files."""
        self.read[name] = self._sources.stamp(name)
        wanted = self._sources.settings(name)
        plans = self._tools.plan([*(settings for settings, _ in served), *wanted], self.standing)
        running, proposed = [plan for _, plan in served], plans[: len(served)]
        fitted = [beside(plan, running, proposed) for plan in plans[len(served) :]]
        return list(zip(wanted, fitted, strict=True))

    def _failed(self, name: str, error: Exception) -> LoadFailed:
        serving = any(model.name == name for model in self._repository)
        foreseen = isinstance(error, HybridError | OSError)
        on = ", the one before serves on" if serving else ""
        log.error("%s cannot be loaded%s: %s", name, on, error, exc_info=None if foreseen else error)
        self._repository.note(name, "UNAVAILABLE", f"the last load failed: {error}" if serving else str(error))
        return LoadFailed(f"{error}; the one before serves on" if serving else str(error))

    async def _replan(self, wish: Wish) -> tuple[Replanned, ...]:
        async with self._turn:
            standing = self.standing.changed(wish)
            switch = Switch(self._repository, self._lives, self._tools)
            await switch.prepare(wish, standing)
            self.standing = standing
            return await switch.carry_out(wish.text)

    def _count(self, outcome: str) -> None:
        self.replans[outcome] = self.replans.get(outcome, 0) + 1

    async def _unload(self, name: str, why: str) -> None:
        async with self._turn:
            loaded = any(model.name == name for model in self._repository)
            if not loaded and name not in await asyncio.to_thread(self._sources.names):
                raise NotFound(f"no model named {name!r} to unload")
            old = self._repository.withdraw(name, "UNLOADING", "it finishes what it has")
            self.asleep.add(name)
            await self._lives.retire(old, self._tools.drain_timeout_s)
            self._repository.note(name, "UNAVAILABLE", why)
            log.info("%s: %s", name, why)

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
            await self._lives.end([model], 0.0)
            return str(error)
        return ""
