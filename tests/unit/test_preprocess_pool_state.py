import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preprocess_world import LIMITS, World

from hybrid.errors import BadRequest, DeadlineExceeded, InferenceFailed, NotReady, QueueFull, TooLarge, WorkerLost
from hybrid.preprocess.job import NEVER, Job, Prepared, Refused, Task, TaskLimits
from hybrid.preprocess.tasks import TaskState

EVENTS = ("submit", "submit", "pump", "finish", "finish", "cancel", "start", "crash", "advance", "bury")


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 10_000)), min_size=20, max_size=150))
def test_random_events_answer_every_job_exactly_once(events):
    world = World()
    for event, number in events:
        getattr(world, event)(number)
        world.check()
    world.settle()
    world.check_answers()
    assert (world.state.queued_items, world.state.queued_bytes) == (0, 0)


def make(**changes) -> TaskState:
    values = {name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__}
    return TaskState(TaskLimits(**{**values, "downgrade": False, "queue_bytes": 10_000, "task_bytes": 1000, **changes}))


def submit(state: TaskState, *items: bytes, deadline: float = NEVER) -> Job:
    job = Job(items, deadline)
    state.submit(job, 0.0)
    return job


def rows(task: Task) -> list[bytes]:
    return [job.items[index] for job, index in task.items]


def echo(task: Task) -> list[tuple[bytes]]:
    return [(item,) for item in rows(task)]


def test_small_jobs_share_a_task_and_a_long_job_is_cut():
    state = make()
    jobs = [submit(state, b"a"), submit(state, b"b", b"c"), submit(state, b"d", b"e", b"f")]
    state.add(1)
    state.add(2)
    first, second = sorted(state.dispatch(0.0), key=lambda task: task.id)
    assert (rows(first), rows(second)) == ([b"a", b"b", b"c", b"d"], [b"e", b"f"])
    assert (first.limit_at, second.limit_at) == (4.0, 2.0)
    # The later part comes back first; the job has its rows in its own order all the same.
    assert state.complete(second.process, echo(second), 0.1, 1.0) == []
    assert state.complete(first.process, echo(first), 0.1, 2.0) == jobs
    assert jobs[2].outcome == Prepared(((b"d",), (b"e",), (b"f",)), 2.0)


def test_a_task_is_bounded_in_bytes_but_takes_one_large_row():
    state = make(task_bytes=10)
    submit(state, b"x" * 50, b"y" * 6, b"z" * 6)
    for process in (1, 2, 3):
        state.add(process)
    assert [len(task.items) for task in state.dispatch(0.0)] == [1, 1, 1]


def test_a_bad_row_fails_its_own_job_and_names_the_row():
    state = make()
    good, bad, other = submit(state, b"a"), submit(state, b"b", b"c"), submit(state, b"d")
    state.add(1)
    (task,) = state.dispatch(0.0)
    outcomes = echo(task)
    outcomes[2] = Refused("input `text`: expected UTF-8 text")
    assert state.complete(1, outcomes, 0.1, 1.0) == [good, bad, other]
    assert isinstance(bad.outcome, BadRequest)
    assert str(bad.outcome) == "row 1 of input `text`: expected UTF-8 text"
    assert isinstance(good.outcome, Prepared)
    assert isinstance(other.outcome, Prepared)
    assert (state.items_n, state.failed_n) == (4, 1)


def test_a_fault_of_the_server_is_not_blamed_on_the_client():
    state = make()
    job = submit(state, b"a")
    state.add(1)
    state.dispatch(0.0)
    state.complete(1, [Refused("out of memory", ours=True)], 0.0, 1.0)
    assert type(job.outcome) is InferenceFailed


def test_a_slow_row_is_found_by_running_each_alone_and_only_it_fails():
    state = make()
    jobs = [submit(state, b"a"), submit(state, b"slow"), submit(state, b"c")]
    state.add(1)
    (task,) = state.dispatch(0.0)
    assert state.overdue(2.9) == []
    assert state.overdue(3.0) == [task]
    assert state.overdue(9.0) == [], "each task is reported once"
    assert state.lose(1, "killed", own=False) == []
    assert state.queued_items == 3
    answered = []
    for process in (2, 3, 4):
        state.add(process)
        (task,) = [task for task in state.dispatch(5.0) if task.process == process]
        if rows(task) == [b"slow"]:
            assert state.overdue(6.0) == [task]
            answered += state.lose(process, "killed", own=False)
        else:
            answered += state.complete(process, echo(task), 0.1, 6.0)
            state.retire(process)
    assert answered == jobs
    assert str(jobs[1].outcome) == "row 0 of input `text` took longer than 1 s to preprocess"
    assert isinstance(jobs[1].outcome, BadRequest)
    assert [type(job.outcome) for job in (jobs[0], jobs[2])] == [Prepared, Prepared]
    assert state.timeouts_n == 1


def test_rows_that_run_again_go_before_rows_that_came_later():
    state = make()
    submit(state, b"a", b"b")
    state.add(1)
    state.dispatch(0.0)
    submit(state, b"later")
    state.lose(1, "crash", own=False)
    order = []
    state.add(2)
    while tasks := state.dispatch(0.0):
        order.append(rows(tasks[0]))
        state.complete(2, echo(tasks[0]), 0.0, 0.0)
    assert order == [[b"a"], [b"b"], [b"later"]]


def test_a_row_that_crashes_twice_fails_with_the_cause():
    state = make()
    job = submit(state, b"a")
    state.add(1)
    state.dispatch(0.0)
    assert state.lose(1, "killed by SIGSEGV", own=True) == []
    state.add(2)
    state.dispatch(0.0)
    assert state.lose(2, "killed by SIGSEGV", own=True) == [job]
    assert str(job.outcome) == "row 0 of input `text` ended its preprocess process twice (killed by SIGSEGV)"


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [(True, True, BadRequest), (True, False, WorkerLost), (False, True, WorkerLost), (False, False, WorkerLost)],
)
def test_a_row_is_to_blame_only_for_processes_that_ended_by_themselves(first, second, error):
    state = make()
    job = submit(state, b"a")
    for process, own in ((1, first), (2, second)):
        state.add(process)
        state.dispatch(0.0)
        answered = state.lose(process, "killed by SIGKILL", own=own)
    assert answered == [job]
    assert type(job.outcome) is error
    assert "row 0 of input `text`" in str(job.outcome)
    assert state.failed_n == 1


def test_a_row_that_is_slow_is_downgraded_and_the_answer_says_so():
    state = make(downgrade=True)
    job = submit(state, b"slow")
    state.add(1)
    (task,) = state.dispatch(0.0)
    assert not task.cheap
    assert state.overdue(1.0) == [task]
    assert state.lose(1, "killed", own=False) == []
    state.add(2)
    (task,) = state.dispatch(2.0)
    assert task.cheap
    assert task.limit_at == 3.0
    assert state.complete(2, [(b"coarse",)], 0.1, 2.5) == [job]
    assert job.outcome == Prepared(((b"coarse",),), 2.5, 1)
    assert (state.downgraded_n, state.timeouts_n, state.failed_n) == (1, 0, 0)


def test_one_that_is_slow_in_its_cheaper_form_too_fails():
    state = make(downgrade=True)
    job = submit(state, b"stuck")
    for process in (1, 2):
        state.add(process)
        state.dispatch(0.0)
        state.overdue(1.0)
        answered = state.lose(process, "killed", own=False)
    assert answered == [job]
    assert type(job.outcome) is BadRequest
    assert str(job.outcome).endswith("took longer than 1 s to preprocess, also in its cheaper form")
    assert (state.downgraded_n, state.timeouts_n, state.failed_n) == (0, 1, 1)


def test_a_neighbour_of_a_slow_row_is_not_downgraded():
    state = make(downgrade=True)
    jobs = [submit(state, b"slow"), submit(state, b"good")]
    state.add(1)
    (task,) = state.dispatch(0.0)
    state.overdue(2.0)
    state.lose(1, "killed", own=False)
    for process in (2, 3, 4):
        state.add(process)
        (task,) = state.dispatch(0.0)
        if rows(task) == [b"slow"] and not task.cheap:
            state.overdue(1.0)
            state.lose(process, "killed", own=False)
        else:
            state.complete(process, echo(task), 0.1, 1.0)
            state.retire(process)
    assert [job.outcome.downgraded for job in jobs] == [1, 0]


def test_rows_that_are_known_are_not_queued_and_stay_in_their_place():
    state = make()
    job = Job([b"a", b"b", b"c", b"d"], NEVER, None, [b"1", b"2", b"3", b"4"], [None, (b"B",), None, (b"D",)])
    state.submit(job, 0.0)
    assert (state.queued_items, state.queued_bytes) == (2, 2)
    state.add(1)
    (task,) = state.dispatch(0.0)
    assert rows(task) == [b"a", b"c"]
    assert state.complete(1, [(b"A",), (b"C",)], 0.1, 1.0) == [job]
    assert job.outcome == Prepared(((b"A",), (b"B",), (b"C",), (b"D",)), 1.0)
    assert (state.queued_items, state.items_n) == (0, 2)


def test_a_bad_row_beside_known_ones_is_named_by_its_own_place():
    state = make()
    job = Job([b"a", b"b"], NEVER, None, [b"1", b"2"], [(b"A",), None])
    state.submit(job, 0.0)
    state.add(1)
    state.dispatch(0.0)
    state.complete(1, [Refused("no")], 0.1, 1.0)
    assert str(job.outcome) == "row 1 of input `text`: no"


def test_a_row_in_a_stopped_process_is_not_called_slow():
    state = make()
    job = submit(state, b"a")
    for process in (1, 2):
        state.add(process)
        (task,) = state.dispatch(0.0)
        (task,) = state.overdue(1.0)
        task.stopped = True
        answered = state.lose(process, "silent", own=False)
        assert answered == ([] if process == 1 else [job])
    assert type(job.outcome) is WorkerLost
    assert state.timeouts_n == 0


def test_an_answer_that_arrives_while_its_process_is_killed_counts():
    state = make()
    job = submit(state, b"a")
    state.add(1)
    state.dispatch(0.0)
    state.overdue(1.0)
    assert state.complete(1, [(b"a",)], 0.1, 1.1) == [job]
    assert isinstance(job.outcome, Prepared)
    assert state.idle == []
    assert state.lose(1, "killed", own=False) == []


def test_a_server_that_stood_still_blames_no_row():
    state = make()
    submit(state, b"a")
    state.add(1)
    state.dispatch(0.0)
    state.postpone(50.25)
    assert state.overdue(50.0) == []
    assert state.wake_at() == 50.25


def test_a_deadline_is_answered_while_everything_is_busy_and_the_rows_leave():
    state = make()
    running, waiting = submit(state, b"a", deadline=3.0), submit(state, b"b", b"c", deadline=2.0)
    state.add(1)
    submit(state, b"d")
    state.limits = make(task_items=1).limits
    state.dispatch(0.0)
    assert state.wake_at() == 1.0
    state.postpone(10.0)
    assert state.wake_at() == 2.0
    assert state.expire(2.0) == [waiting]
    assert isinstance(waiting.outcome, DeadlineExceeded)
    assert state.queued_items == 1
    assert state.expire(3.0) == [running]
    assert state.complete(1, [(b"a",)], 0.1, 4.0) == [], "answered already"


def test_a_cancelled_job_leaves_at_once_and_makes_room():
    state = make(queue_items=2)
    job = submit(state, b"a", b"b")
    with pytest.raises(QueueFull, match="2 of 2 rows wait and the request has 1"):
        submit(state, b"c")
    assert state.cancel(job)
    assert (state.queued_items, state.queued_bytes, state.jobs) == (0, 0, {})
    submit(state, b"c")
    assert not state.cancel(job)


def test_the_queue_is_bounded_in_bytes():
    state = make(queue_bytes=10)
    submit(state, b"12345678")
    with pytest.raises(QueueFull, match="8 of 10 bytes wait"):
        submit(state, b"123")
    with pytest.raises(TooLarge, match="11 bytes"):
        submit(state, b"12345678901")
    assert state.jobs_n == 1


def test_a_request_that_never_fits_is_not_told_to_come_back():
    with pytest.raises(TooLarge, match="3 rows in one request; preprocessing takes at most 2"):
        submit(make(queue_items=2), b"a", b"b", b"c")
    with pytest.raises(BadRequest, match="at least one row"):
        submit(make())


def test_retry_after_follows_the_measured_pace():
    state = make()
    state.add(1)
    job = submit(state, b"a")
    state.dispatch(0.0)
    state.complete(1, [(b"a",)], 0.5, 1.0)
    assert job.closed
    submit(state, *[b"b"] * 6)
    assert state.queue_wait_s() == pytest.approx(3.0)


def test_closing_answers_everything_open():
    state = make(task_items=1)
    jobs = [submit(state, b"a"), submit(state, b"b")]
    state.add(1)
    state.dispatch(0.0)
    assert state.close_all(NotReady("stopping")) == jobs
    assert state.complete(1, [(b"a",)], 0.0, 0.0) == []
    assert (state.queued_items, state.jobs) == (0, {})


def test_deadlines_of_finished_jobs_do_not_pile_up():
    state = make()
    state.add(1)
    for _ in range(1000):
        submit(state, b"a", deadline=1e9)
        state.dispatch(0.0)
        state.complete(1, [(b"a",)], 0.0, 0.0)
    assert len(state._deadlines) < 100
    assert state.wake_at() == NEVER
