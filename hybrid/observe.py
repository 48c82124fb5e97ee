"""One Snapshot a second from the `stats` of every owner. Reads, never changes; nothing of a request is in it.

Owns the sampler, the boot id and the sequence number. Stands beside `app` and not inside `serving` or `telemetry`: it
reads the front end as well as the models, and none of those may know it.
"""

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Final

from hybrid import __version__
from hybrid.batching.queue import LaneCounters, Piece
from hybrid.facts import MachineFacts
from hybrid.frontend.http import HttpServer
from hybrid.preprocess.stats import total
from hybrid.serving.counters import Counters
from hybrid.serving.manager import Manager
from hybrid.serving.model import ServedModel
from hybrid.serving.repository import Repository
from hybrid.telemetry import snapshot as snap
from hybrid.telemetry.histogram import Histogram
from hybrid.telemetry.sampler import HostSample, Sampler
from hybrid.workers.member import Member, MemberState

PERIOD_S: Final = 1.0
_ABSENT: Final = {
    "gpus": "what GPUs are is read for the plan; how busy they are is not read",
    "findings": "this version has no rules",
    "soak": "no soak is running",
}


class Observer:
    """Builds Snapshots. `state` is what the application says of itself: (state, why); `inflight` how much is open."""

    def __init__(
        self,
        repository: Repository,
        manager: Manager,
        http: HttpServer,
        machine: MachineFacts,
        state: Callable[[], tuple[str, str]],
        inflight: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self.loop_lag = Histogram()
        self._repository = repository
        self._manager = manager
        self._http = http
        self._state = state
        self._inflight = inflight
        self._clock = clock
        self._boot_id = uuid.uuid4().hex
        self._sequence = 0
        self._last_bytes = 0
        self._sampler = Sampler(machine.cpu.cpus, machine.memory_limit_bytes)

    def snapshot(self) -> snap.Snapshot:
        """Return everything at this moment."""
        began = time.perf_counter()
        now = self._clock()
        self._sequence += 1
        sample = self._sampler.sample(now, self._pids())
        state, why = self._state()
        return snap.Snapshot(
            boot_id=self._boot_id,
            seq=self._sequence,
            t_mono_s=now,
            t_wall_s=time.time(),
            period_s=PERIOD_S,
            node=socket.gethostname(),
            version=__version__,
            state=state,
            state_why=why,
            host=sample.host,
            front=self._front(),
            models=tuple(self._models(now)),
            workers=tuple(worker for model in self._repository for worker in _workers(model, now)),
            config_rev=self._manager.revision,
            replans=tuple(snap.Replans(outcome, n) for outcome, n in sorted(self._manager.replans.items())),
            memory=self._memory(sample) + self._engine_memory(),
            absent=sample.absent | _ABSENT,
            cost=snap.Cost(build_s=time.perf_counter() - began, bytes=self._last_bytes),
        )

    def encoded(self) -> bytes:
        """Return a fresh Snapshot as JSON."""
        data = snap.encode(self.snapshot())
        self._last_bytes = len(data)
        return data

    def _models(self, now: float) -> Iterator[snap.Model]:
        """Those that are served, then those that are not any more: what they counted must not vanish from the sums."""
        yield from (_model(model, now) for model in self._repository)
        served = {(model.name, model.version) for model in self._repository}
        for name, version, counters in self._manager.ledger.others(served):
            yield _gone(name, version, counters)

    def _pids(self) -> dict[str, int]:
        pids = {"server": os.getpid()}
        for model, part in self._manager.alive():
            for member in model.pool.members.values():
                if member.child is not None:
                    pids[_owner(model, member, part)] = member.child.pid
            if model.preprocess is not None and model.owns_preprocess:
                for index, process in enumerate(model.preprocess.stats().members):
                    pids[f"p{index} {_label(model, part)}"] = process.pid
        return pids

    def _front(self) -> snap.Front:
        http = self._http.stats()
        models = [model for model, _ in self._manager.alive()]
        pools = [model.preprocess.stats() for model in models if model.preprocess is not None and model.owns_preprocess]
        pre = total((self._manager.ledger.preprocess, *pools))
        return snap.Front(
            inflight=self._inflight(),
            conns=http.connections,
            loop_lag=self.loop_lag.sparse(),
            pre_busy_s=pre.busy_s,
            pre_cpu_s=pre.cpu_s,
            pre_threads=sum(pool.ready for pool in pools),
            pre_queue=sum(pool.queued_items for pool in pools),
            pre_items_n=pre.items_n,
            pre_rejected_n=pre.failed_n,
            pre_late_n=pre.timeouts_n,
            pre_downgraded_n=pre.downgraded_n,
            pre_cache_hits_n=pre.cache_hits_n,
            pre_cache_misses_n=pre.cache_misses_n,
            pre_cache_bytes=sum(pool.cache_bytes for pool in pools),
            bytes_queued=http.body_bytes + sum(model.scheduler.state.held_bytes for model in models),
            outcomes=_sum_outcomes([counters.tally.outcomes() for counters in self._manager.ledger]),
            http=snap.Http(
                requests_n=http.requests_n,
                accepted_n=http.accepted_connections_n,
                disconnects_n=http.disconnects_n,
                refused_n=http.refused_connections_n,
                refused_bodies_n=http.refused_bodies_n,
                received_bytes_n=http.received_bytes_n,
                sent_bytes_n=http.sent_bytes_n,
                malformed_n=http.bad_requests_n,
                timeouts_n=http.timeouts_n,
                responses=tuple(snap.Responses(entry.status, entry.n) for entry in http.responses),
            ),
        )

    @staticmethod
    def _memory(sample: HostSample) -> tuple[snap.Mem, ...]:
        roles = {"s": "server", "w": "worker", "p": "preprocess"}
        return tuple(snap.Mem(owner=p.owner, role=roles[p.owner[0]], now=p.rss) for p in sample.processes)

    def _engine_memory(self) -> tuple[snap.Mem, ...]:
        """What the engines say of their own memory, on the device where it is one."""
        members = [(model, member) for model in self._repository for member in model.pool.members.values()]
        return tuple(
            snap.Mem(owner=_owner(model, member, ""), role="engine", signal=kind, now=now)
            for model, member in members
            for kind, now in (member.child.memory.known() if member.child is not None else ())
        )


def _owner(model: ServedModel, member: Member, part: str) -> str:
    if not part and member.state is MemberState.STARTING and model.pool.ready:
        part = "next"
    return f"w{member.seat} {_label(model, part)}"


def _label(model: ServedModel, part: str) -> str:
    """Name a part of a model; the latest version goes by the name alone, and `part` tells apart what comes and goes."""
    version = "" if model.version == "1" else f" version {model.version}"
    return f"{model.name}{version}{f' ({part})' if part else ''}"


def _sum_outcomes(parts: list[snap.Outcomes]) -> snap.Outcomes:
    names = snap.Outcomes.__struct_fields__
    return snap.Outcomes(**{name: sum(getattr(part, name) for part in parts) for name in names})


def _model(model: ServedModel, now: float) -> snap.Model:
    plan = model.plan
    return snap.Model(
        name=model.name,
        version=model.version,
        state="ready" if model.ready else "loading" if model.signature is None else "unavailable",
        slo_s=model.settings.slo_p99_ms / 1000.0 if model.settings.slo_p99_ms is not None else None,
        queue_limit=plan.queue_rows,
        outcomes=model.tally.outcomes(),
        e2e=model.tally.e2e.sparse(),
        stages=model.tally.stages(),
        classes=_classes(model, now),
        pad_n=sum(counters.pad_n for counters in model.scheduler.state.lanes.classes.values()),
        real_n=sum(counters.real_n for counters in model.scheduler.state.lanes.classes.values()),
        in_force=snap.InForce(
            max_batch=plan.max_batch,
            max_wait_s=plan.max_wait_s,
            early_trigger=plan.early_trigger,
            class_edges=plan.size_edges,
            instances=plan.instances,
            threads=plan.threads_per_instance,
            device=plan.device,
            source=model.why,
        ),
        restarts_n=sum(seat.restarts_n for seat in model.pool.counts.seats),
        worker_ends=tuple(snap.WorkerEnds(cause, n) for cause, n in sorted(model.pool.counts.ends.items())),
    )


def _gone(name: str, version: str, counters: Counters) -> snap.Model:
    pool, tally = counters.pool, counters.tally
    return snap.Model(
        name=name,
        version=version,
        state="unloaded",
        outcomes=tally.outcomes(),
        e2e=tally.e2e.sparse(),
        stages=tally.stages(),
        classes=tuple(_size_class(key, counts, [], 0, 0.0) for key, counts in counters.classes.items()),
        restarts_n=sum(seat.restarts_n for seat in pool.seats),
        worker_ends=tuple(snap.WorkerEnds(cause, n) for cause, n in sorted(pool.ends.items())),
    )


def _classes(model: ServedModel, now: float) -> tuple[snap.SizeClass, ...]:
    state = model.scheduler.state
    waiting = state.lanes.waiting(state.policy)
    counted = state.lanes.classes
    # Right after edges were learned, something may wait in a class of which nothing was counted yet.
    classes = counted | {key: LaneCounters() for key in waiting if key not in counted}
    return tuple(
        _size_class(key, counters, waiting.get(key, []), model.plan.max_batch, now) for key, counters in classes.items()
    )


def _size_class(key: str, counters: LaneCounters, waiting: list[Piece], max_batch: int, now: float) -> snap.SizeClass:
    sizes = [0] * max(max_batch, max(counters.sizes_n, default=0))
    for rows, count in counters.sizes_n.items():
        sizes[rows - 1] = count
    return snap.SizeClass(
        key=key,
        hi=int(key) if key.isdigit() else None,
        depth=sum(piece.rows for piece in waiting),
        bytes=sum(piece.ticket.nbytes * piece.rows // piece.ticket.rows for piece in waiting),
        oldest_s=max((now - piece.ticket.arrived for piece in waiting), default=None),
        arrived_n=counters.arrived_n,
        batches_n=counters.batches_n,
        items_n=counters.rows_n,
        sizes_n=tuple(sizes),
        released=snap.Released(**{f"{reason.value}_n": count for reason, count in counters.released.items()}),
        pad_n=counters.pad_n,
        real_n=counters.real_n,
    )


def _workers(model: ServedModel, now: float) -> list[snap.Worker]:
    """One entry per seat, whether or not a process sits on it."""
    by_seat: dict[int, Member] = {}
    for member in model.pool.members.values():
        if member.seat not in by_seat or member.state is MemberState.READY:
            by_seat[member.seat] = member
    return [_worker(model, seat, by_seat.get(seat), now) for seat in range(model.plan.instances)]


def _worker(model: ServedModel, seat: int, member: Member | None, now: float) -> snap.Worker:
    pool, plan = model.pool, model.plan
    child = member.child if member is not None else None
    running = next(iter(member.taken), None) if member is not None else None
    batch = model.scheduler.state.batches.get(running) if running is not None else None
    counts = pool.seats[seat].counts
    return snap.Worker(
        id=f"w{seat}",
        model=model.name,
        state=_worker_state(member),
        device=plan.device,
        pid=child.pid if child is not None else None,
        cores=plan.cores[seat] if seat < len(plan.cores) else (),
        threads=plan.threads_per_instance,
        since_s=now - member.since if member is not None else 0.0,
        beat_age_s=now - child.heard_at if child is not None else None,
        batch_id=batch.id if batch is not None else None,
        batch_items=batch.rows if batch is not None else None,
        batch_age_s=now - batch.started_at if batch is not None else None,
        batch_pred_s=model.scheduler.state.predicted_s(batch) if batch is not None else None,
        busy_s=counts.busy_s,
        cpu_s=child.cpu_s if child is not None else None,
        batches_n=counts.batches_n,
        items_n=counts.rows_n,
        rss=child.rss_bytes if child is not None else None,
        restarts_n=counts.restarts_n,
        last_end=pool.seats[seat].last_end,
    )


def _worker_state(member: Member | None) -> str:
    if member is None:
        return "dead"
    if member.state is MemberState.READY:
        return "busy" if member.taken else "ready"
    return {"starting": "starting", "retiring": "draining", "stopped": "draining"}[member.state.value]
