"""Which rows go to which preprocess process next, and what an answer, a crash or a slow row means for whom.

A job is the rows of one client request, answered once: with all of them, or with the first error. A task is what one
process has at a time: waiting rows of one or several jobs, in order of arrival. A row whose task was lost or overran
runs once more, alone, before the others, so that only the guilty row fails. One that overruns alone fails, or is tried
once more at less cost where the settings say so. Pure: no clock, no process, no socket.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from hybrid.errors import BadRequest, DeadlineExceeded, HybridError, QueueFull, TooLarge, WorkerLost
from hybrid.preprocess.base import Row
from hybrid.preprocess.job import NEVER, Job, Prepared, Refused, Task, TaskLimits, refusal, row_name


class TaskState:
    """All open jobs, the queue, and the task of every process. Methods return the jobs that they answered."""

    def __init__(self, limits: TaskLimits) -> None:
        self.limits = limits
        self.jobs: dict[int, Job] = {}
        self.running: dict[int, Task] = {}  # by process
        self.queued_items = 0
        self.queued_bytes = 0
        self.jobs_n = 0
        self.items_n = 0
        self.failed_n = 0
        self.timeouts_n = 0
        self.downgraded_n = 0
        self.busy_s = 0.0
        self.idle: list[int] = []  # the one used last is used next: its caches are warm
        self._processes: set[int] = set()
        self._queue: OrderedDict[int, Job] = OrderedDict()
        self._alone: deque[tuple[Job, int]] = deque()
        self._deadlines: list[tuple[float, int]] = []
        self._next_job = 0
        self._next_task = 0

    # Clients -------------------------------------------------------------------------------------------------------

    def submit(self, job: Job, now: float) -> None:
        """Take a job in. On an error it stays with the caller.

        Raises:
            BadRequest: it has no rows.
            QueueFull: its rows or bytes do not fit behind those that wait.
            TooLarge: they would not fit into an empty queue.
        """
        self._check_room(job)
        self._next_job += 1
        job.id = self._next_job
        job.arrived = now
        self.jobs[job.id] = job
        self._queue[job.id] = job
        self.queued_items += job.waiting
        self.queued_bytes += job.waiting_bytes
        self.jobs_n += 1
        if job.deadline != NEVER:
            if len(self._deadlines) > 2 * len(self.jobs) + 64:
                self._deadlines = [entry for entry in self._deadlines if entry[1] in self.jobs]
                heapify(self._deadlines)
            heappush(self._deadlines, (job.deadline, job.id))

    def cancel(self, job: Job) -> bool:
        """Forget a job; False when it was answered already. Rows that run are finished and thrown away."""
        if job.closed:
            return False
        self._close(job, None)
        return True

    def close_all(self, error: HybridError) -> list[Job]:
        """Answer every open job with `error`."""
        answered = list(self.jobs.values())
        for job in answered:
            self._close(job, error)
        return answered

    # Processes -----------------------------------------------------------------------------------------------------

    def add(self, process: int) -> None:
        """A process takes tasks from now on."""
        self._processes.add(process)
        self.idle.append(process)

    def retire(self, process: int) -> None:
        """The process is being ended and gets no further task; `lose` follows."""
        self._processes.discard(process)
        if process in self.idle:
            self.idle.remove(process)

    def lose(self, process: int, cause: str, *, own: bool) -> list[Job]:
        """The process is gone, by its `own` doing or ended by somebody: the rows it had run again alone, or fail."""
        self.retire(process)
        task = self.running.pop(process, None)
        if task is None:
            return []
        answered: list[Job] = []
        for job, index in reversed(task.items):  # put in front one by one, so the first is first again
            if job.closed:
                continue
            if task.overran and not task.stopped:
                error = self._after_overrun(task, job, index)
            else:
                error = self._after_loss(job, index, cause, own)
            if error is None:
                self._alone.appendleft((job, index))
                self._wait(job, index)
            else:
                self.failed_n += 1
                self._close(job, error)
                answered.append(job)
        return answered

    # Tasks ---------------------------------------------------------------------------------------------------------

    def dispatch(self, now: float) -> list[Task]:
        """Give the idle processes what waits. Returns the tasks to send."""
        tasks: list[Task] = []
        while self.idle and self.queued_items:
            items = self._take()
            self._next_task += 1
            limit_at = now + len(items) * self.limits.item_timeout_s
            task = Task(self._next_task, self.idle.pop(), items, now, limit_at)
            self.running[task.process] = task
            tasks.append(task)
        return tasks

    def complete(self, process: int, outcomes: Sequence[Row | Refused], seconds: float, now: float) -> list[Job]:
        """Take the outcomes of the process's task, in the order of its rows."""
        task = self.running.pop(process)
        if process in self._processes:
            self.idle.append(process)
        self.busy_s += seconds
        answered: list[Job] = []
        for (job, index), outcome in zip(task.items, outcomes, strict=True):
            self.items_n += 1
            refused = type(outcome) is Refused
            self.failed_n += refused
            if job.closed:
                continue
            if isinstance(outcome, Refused):
                self._close(job, refusal(self.limits.input, index, outcome))
            else:
                self.downgraded_n += task.cheap
                job.rows[index] = outcome
                job.open_items -= 1
                if job.open_items:
                    continue
                self._close(job, Prepared(tuple(job.rows), now - job.arrived, len(job.cheap)))
            answered.append(job)
        return answered

    # Time ----------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> list[Job]:
        """Answer the jobs whose deadline has passed; their rows that wait leave, those that run are thrown away."""
        expired: list[Job] = []
        heap = self._deadlines
        while heap and heap[0][0] <= now:
            job = self.jobs.get(heappop(heap)[1])
            if job is not None:
                self._close(job, DeadlineExceeded(f"deadline passed after {now - job.arrived:.3f} s in preprocessing"))
                expired.append(job)
        return expired

    def overdue(self, now: float) -> list[Task]:
        """Return the tasks that are over their limit now, each once. Their processes must be ended."""
        late = [task for task in self.running.values() if task.limit_at <= now and not task.overran]
        for task in late:
            task.overran = True
            self.retire(task.process)
        return late

    def postpone(self, until: float) -> None:
        """Nobody is overdue before `until`: the server itself stood still, and answers may be waiting unread."""
        for task in self.running.values():
            task.limit_at = max(task.limit_at, until)

    def wake_at(self) -> float:
        """Return when a deadline or a limit is due next; inf when there is none."""
        heap = self._deadlines
        while heap and heap[0][1] not in self.jobs:
            heappop(heap)
        when = heap[0][0] if heap else NEVER
        for task in self.running.values():
            if task.limit_at < when and not task.overran:
                when = task.limit_at
        return when

    def queue_wait_s(self) -> float:
        """Return about how long a row that comes now would wait."""
        mean_s = self.busy_s / self.items_n if self.items_n else 0.0
        return self.queued_items * mean_s / max(1, len(self._processes))

    # Inside --------------------------------------------------------------------------------------------------------

    def _check_room(self, job: Job) -> None:
        limits = self.limits
        if not job.items:
            raise BadRequest(f"input `{limits.input}`: expected at least one row")
        if job.waiting > limits.queue_items:
            raise TooLarge(f"{job.waiting} rows in one request; preprocessing takes at most {limits.queue_items}")
        if job.waiting_bytes > limits.queue_bytes:
            raise TooLarge(f"{job.waiting_bytes} bytes of rows; preprocessing takes at most {limits.queue_bytes}")
        if self.queued_items + job.waiting > limits.queue_items:
            text = f"{self.queued_items} of {limits.queue_items} rows wait and the request has {job.waiting}"
            raise QueueFull(f"preprocess queue full: {text}", self.queue_wait_s())
        if self.queued_bytes + job.waiting_bytes > limits.queue_bytes:
            text = f"{self.queued_bytes} of {limits.queue_bytes} bytes wait and the request has {job.waiting_bytes}"
            raise QueueFull(f"preprocess queue full: {text}", self.queue_wait_s())

    def _take(self) -> list[tuple[Job, int]]:
        while self._alone:
            job, index = self._alone.popleft()
            if not job.closed:
                self._unwait(job, index)
                return [(job, index)]
        room, bytes_left = self.limits.task_items, self.limits.task_bytes
        items: list[tuple[Job, int]] = []
        while self._queue and len(items) < room:
            job = next(iter(self._queue.values()))
            index = job.todo[job.next_item]
            bytes_left -= len(job.items[index])
            if bytes_left < 0 and items:
                break
            items.append((job, index))
            self._unwait(job, index)
            job.next_item += 1
            if job.next_item == len(job.todo):
                del self._queue[job.id]
        return items

    def _wait(self, job: Job, index: int) -> None:
        size = len(job.items[index])
        job.waiting += 1
        job.waiting_bytes += size
        self.queued_items += 1
        self.queued_bytes += size

    def _unwait(self, job: Job, index: int) -> None:
        size = len(job.items[index])
        job.waiting -= 1
        job.waiting_bytes -= size
        self.queued_items -= 1
        self.queued_bytes -= size

    def _close(self, job: Job, outcome: Prepared | HybridError | None) -> None:
        job.closed = True
        job.outcome = outcome
        self.queued_items -= job.waiting
        self.queued_bytes -= job.waiting_bytes
        job.waiting = job.waiting_bytes = 0
        job.items = ()  # a task that still runs has its own copy
        self._queue.pop(job.id, None)
        del self.jobs[job.id]

    def _after_loss(self, job: Job, index: int, cause: str, own: bool) -> HybridError | None:
        """Return the error of a row whose process ended, or None when it gets another try, alone."""
        before = job.lost.get(index)
        job.lost[index] = own
        if before is None:
            return None
        if before and own:
            return BadRequest(f"{self._name(index)} ended its preprocess process twice ({cause})")
        return WorkerLost(f"{self._name(index)} lost its preprocess process twice ({cause})")

    def _after_overrun(self, task: Task, job: Job, index: int) -> HybridError | None:
        """Return the error of a row that took too long, or None when it gets another try: alone, or at less cost."""
        if len(task.items) > 1:
            return None
        if self.limits.downgrade and not task.cheap:
            job.cheap = {*job.cheap, index}
            return None
        self.timeouts_n += 1
        also = ", also in its cheaper form" if task.cheap else ""
        return BadRequest(f"{self._name(index)} took longer than {self.limits.item_timeout_s:g} s to preprocess{also}")

    def _name(self, index: int) -> str:
        return row_name(self.limits.input, index)
