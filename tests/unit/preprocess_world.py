"""Random events against `TaskState`: clients, processes, slow, crashing and bad rows, and what must always hold."""

from hybrid.errors import BadRequest, DeadlineExceeded, HybridError, QueueFull, TooLarge, WorkerLost
from hybrid.preprocess.job import NEVER, Job, Prepared, Refused, Task, TaskLimits
from hybrid.preprocess.tasks import TaskState

LIMITS = TaskLimits(
    input="text", item_timeout_s=1.0, queue_items=12, queue_bytes=90, task_items=4, task_bytes=30, downgrade=True
)
KINDS = (b"good", b"good", b"good", b"bad", b"slow", b"stuck", b"crash")  # stuck is slow in its cheaper form as well


class World:
    """The state, its imagined processes and clients, and a clock that only `advance` moves."""

    def __init__(self, limits: TaskLimits = LIMITS) -> None:
        self.state = TaskState(limits)
        self.now = 100.0
        self.processes: set[int] = set()
        self.sent: dict[int, tuple[Task, list[bytes]]] = {}
        self.dying: set[int] = set()
        self.jobs: dict[int, tuple[Job, list[bytes]]] = {}
        self.answers: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.losses: dict[bytes, list[bool]] = {}
        self.overran_alone: set[bytes] = set()
        self.refused_n = 0

    # Events: each takes one number to choose by ---------------------------------------------------------------------

    def submit(self, n: int) -> None:
        serial = len(self.jobs) + self.refused_n
        rows = 1 + n % 5 if n % 7 else 1
        items = [KINDS[(n >> k) % len(KINDS)] + b":%d:%d" % (serial, k) for k in range(rows)]
        deadline = NEVER if n % 3 else self.now + (n % 40) / 10
        known = [(item,) if n % 4 == 1 and (n >> k) % 3 == 1 else None for k, item in enumerate(items)]
        if all(known):
            known[0] = None  # else it would not come to the queue
        job = Job(items, deadline, None, items, known if n % 4 == 1 else ())  # type: ignore[arg-type]
        try:
            self.state.submit(job, self.now)
        except (QueueFull, TooLarge):
            self.refused_n += 1
            rest = [items[index] for index in job.todo]
            assert self.state.queued_items + len(rest) > LIMITS.queue_items or (
                self.state.queued_bytes + sum(map(len, rest)) > LIMITS.queue_bytes
            )
        else:
            self.jobs[job.id] = (job, items)

    def cancel(self, n: int) -> None:
        open_jobs = list(self.state.jobs.values())
        if open_jobs:
            job = open_jobs[n % len(open_jobs)]
            assert self.state.cancel(job)
            assert not self.state.cancel(job)
            self.cancelled.add(job.id)

    def start(self, n: int) -> None:
        if len(self.processes) < 3:
            process = max(self.processes, default=0) + n % 3 + 1
            self.processes.add(process)
            self.state.add(process)

    def pump(self, n: int = 0) -> None:
        self._answered(self.state.expire(self.now))
        for task in self.state.dispatch(self.now):
            assert task.process in self.processes
            assert task.process not in self.dying
            self.sent[task.process] = (task, [job.items[index] for job, index in task.items])

    def finish(self, n: int) -> None:
        """A process answers, unless one of its rows never lets it."""
        never = {False: (b"slow", b"stuck", b"crash"), True: (b"stuck", b"crash")}
        able = [p for p, (t, items) in self.sent.items() if not any(i.startswith(never[t.cheap]) for i in items)]
        if able:
            process = able[n % len(able)]
            _, items = self.sent.pop(process)
            outcomes = [Refused("input `text`: bad") if i.startswith(b"bad") else (i,) for i in items]
            self._answered(self.state.complete(process, outcomes, 0.01, self.now))  # type: ignore[arg-type]

    def crash(self, n: int) -> None:
        """A process with a crashing row dies; or, now and then, any process is killed from outside."""
        doomed = [p for p, (_, items) in self.sent.items() if any(i.startswith(b"crash") for i in items)]
        if n % 4 == 0:
            doomed = sorted(self.processes)
        if doomed:
            self._lose(doomed[n % len(doomed)], own=n % 4 != 0)

    def advance(self, n: int) -> None:
        self.now += (n % 30) / 10
        for task in self.state.overdue(self.now):
            assert self.now >= task.started + len(task.items) * LIMITS.item_timeout_s
            task.stopped = n % 5 == 0
            self.dying.add(task.process)
            if len(task.items) == 1:
                assert not task.cheap or self.sent[task.process][1][0] in self.overran_alone
                self.overran_alone.update(self.sent[task.process][1])

    def bury(self, n: int) -> None:
        if self.dying:
            self._lose(sorted(self.dying)[n % len(self.dying)], own=False)

    # End ------------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let everything that waits come to its end."""
        for _ in range(2000):
            if not self.state.jobs and not self.sent:
                return
            self.start(0)
            self.pump()
            self.check()
            self.finish(0)
            self.crash(1)
            self.advance(15)
            self.bury(0)
        raise AssertionError(f"{len(self.state.jobs)} jobs never end")

    def check(self) -> None:
        """What holds after every event, counted from scratch."""
        state = self.state
        running = {(id(job), index) for task in state.running.values() for job, index in task.items}
        alone = [(job, index) for job, index in state._alone if not job.closed]
        waiting = [(job, i) for job in state._queue.values() for i in job.todo[job.next_item :]] + alone
        assert state.queued_items == len(waiting) <= LIMITS.queue_items + 3 * LIMITS.task_items
        assert state.queued_bytes == sum(len(job.items[i]) for job, i in waiting)
        for job in state.jobs.values():
            mine = [i for owner, i in waiting if owner is job] + [i for owner, i in running if owner == id(job)]
            assert len(mine) == len(set(mine)) == job.open_items, "a row is lost, or at two places"
            assert job.waiting == sum(owner is job for owner, _ in waiting)
            assert all(job.rows[i] == () for i in mine)
        assert not set(state.idle) & set(state.running)
        assert len(state.idle) == len(set(state.idle))
        assert len(state._deadlines) <= 2 * len(state.jobs) + 66

    def check_answers(self) -> None:
        """Every job was answered once, with what belongs to it."""
        for job_id, (job, items) in self.jobs.items():
            assert self.answers.get(job_id, 0) == (job_id not in self.cancelled), "not answered exactly once"
            if job_id not in self.cancelled:
                self._check_outcome(job, items)

    def _check_outcome(self, job: Job, items: list[bytes]) -> None:
        outcome = job.outcome
        if isinstance(outcome, Prepared):
            assert [row[0] for row in outcome.rows] == items
            assert outcome.downgraded <= sum(item in self.overran_alone for item in items)
            assert outcome.downgraded >= sum(item.startswith(b"slow") for item in (items[i] for i in job.todo))
            return
        assert isinstance(outcome, HybridError)
        if isinstance(outcome, DeadlineExceeded):
            assert job.deadline <= self.now
            return
        index = int(str(outcome).split()[1])
        item, text = items[index], str(outcome)
        if isinstance(outcome, WorkerLost):
            assert len(self.losses[item]) >= 2, text
            return
        assert isinstance(outcome, BadRequest)
        if "took longer" in text:
            assert item in self.overran_alone, text
            assert text.endswith("also in its cheaper form") == LIMITS.downgrade
        elif "twice" in text:
            assert self.losses[item][-2:] == [True, True], text
        else:
            assert item.startswith(b"bad"), text

    def _answered(self, jobs: list[Job]) -> None:
        for job in jobs:
            assert job.closed
            assert job.outcome is not None
            self.answers[job.id] = self.answers.get(job.id, 0) + 1

    def _lose(self, process: int, *, own: bool) -> None:
        self.processes.discard(process)
        self.dying.discard(process)
        task, items = self.sent.pop(process, (None, []))
        for item in items if task is None or not task.overran or task.stopped else ():
            self.losses.setdefault(item, []).append(own)
        self._answered(self.state.lose(process, "killed by SIGSEGV", own=own))
