"""The preprocess pool with real processes: order, isolation of bad, slow and crashing rows, deadlines, clean end."""

import asyncio
import io
import os
import signal
import time
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from children import quiet_hub, until
from PIL import ExifTags, Image

from hybrid.config import ImageSettings, PreprocessSettings, TextSettings
from hybrid.errors import BadRequest, DeadlineExceeded, NotReady, QueueFull, WorkerLost
from hybrid.messages import Signature, TensorSpec
from hybrid.models import builtin
from hybrid.preprocess.build import build
from hybrid.preprocess.job import Prepared
from hybrid.preprocess.pool import PreprocessPool

pytestmark = pytest.mark.slow

TOKENIZER = Path(builtin.__file__).parent / "data" / "minilm" / "tokenizer.json"
TEXT = PreprocessSettings(text=TextSettings(tokenizer=str(TOKENIZER)))
IMAGE = PreprocessSettings(image=ImageSettings(width=64, height=64), item_timeout_s=30.0)
TEXT_MODEL = Signature((TensorSpec("input_ids", "INT64", (-1, -1)),), ())
IMAGE_MODEL = Signature((TensorSpec("x", "FP32", (-1, 3, 64, 64)),), ())


def image(mode: str, side: int, colour: int = 0, form: str = "PNG", turned: bool = False) -> bytes:
    buffer = io.BytesIO()
    exif = Image.Exif()
    if turned:
        exif[ExifTags.Base.Orientation] = 6
    Image.new(mode, (side, side), colour).save(buffer, form, exif=exif)
    return buffer.getvalue()


GOOD = image("L", 8, 200)
SLOW = image("1", 7900, turned=True)  # 62 million pixels in 8 KB: half a second and more


@asynccontextmanager
async def pool_of(settings: PreprocessSettings, processes: int = 1, wait: bool = True):
    with quiet_hub() as hub:
        pool = PreprocessPool("m", settings, processes, hub, asyncio.get_running_loop(), time.monotonic)
        pool.start(TEXT_MODEL if settings.text else IMAGE_MODEL)
        try:
            if wait:
                await until(lambda: pool.ready == processes)
            yield pool
            await until(lambda: not pool.state.jobs and not pool.state.running)
            assert (pool.stats().queued_items, pool.stats().queued_bytes, pool.stats().busy) == (0, 0, 0)
        finally:
            pids = [member.pid for member in pool.stats().members]
            await pool.stop(5.0)
        assert not [pid for pid in pids if psutil.pid_exists(pid)]


def submit(pool: PreprocessPool, *items: bytes, timeout_s: float = 60.0) -> asyncio.Future:
    """Resolves to the outcome, error or not; a second call of `on_done` would raise in the loop."""
    answer = asyncio.get_running_loop().create_future()
    pool.submit(items, time.monotonic() + timeout_s, answer.set_result)
    assert not answer.done()
    return answer


async def busy_pid(pool: PreprocessPool, other_than: int = 0) -> int:
    """The process that has a task, once it is not `other_than`."""
    await until(lambda: any(pool.crew.members[key].child.pid != other_than for key in pool.state.running))
    return next(pool.crew.members[key].child.pid for key in pool.state.running)


async def test_texts_come_back_in_order_and_unmixed():
    local = build(TEXT, TEXT_MODEL)
    jobs = [[f"number {n} of row {r} ".encode() * (1 + (n + r) % 9) for r in range(1 + n % 5)] for n in range(200)]
    async with pool_of(TEXT, 2) as pool:
        outcomes = await asyncio.gather(*(submit(pool, *items) for items in jobs))
        for items, outcome in zip(jobs, outcomes, strict=True):
            assert isinstance(outcome, Prepared)
            for item, (ids,) in zip(items, outcome.rows, strict=True):
                assert ids.dtype == np.int32
                assert np.array_equal(ids, local.row(item)[0])
        stats = pool.stats()
        assert (stats.jobs_n, stats.items_n, stats.failed_n) == (200, sum(map(len, jobs)), 0)
        # Rows share messages: far fewer tasks than jobs.
        assert pool.state._next_task < 100


async def test_images_of_any_size_arrive_whole():
    local = build(IMAGE, IMAGE_MODEL)
    noise = np.random.default_rng(1).integers(0, 255, (700, 500, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "BMP")
    items = [GOOD, buffer.getvalue(), image("RGB", 16, 0x123456)]
    async with pool_of(IMAGE, 2) as pool:
        outcome = await submit(pool, *items)
        for item, (pixels,) in zip(items, outcome.rows, strict=True):
            assert np.array_equal(pixels, local.row(item)[0])


async def test_a_bad_image_fails_its_own_request_only():
    async with pool_of(IMAGE, 2) as pool:
        truncated = image("RGB", 64, form="BMP")[:500]
        answers = [
            submit(pool, GOOD),
            submit(pool, GOOD, truncated, GOOD),
            submit(pool, b"no image"),
            submit(pool, GOOD),
        ]
        first, second, third, fourth = await asyncio.gather(*answers)
        assert isinstance(first, Prepared)
        assert isinstance(fourth, Prepared)
        assert isinstance(second, BadRequest)
        assert str(second).startswith("row 1 of input `image`: the image cannot be decoded")
        assert str(third).startswith("row 0 of input `image`: not an image")
        assert pool.stats().restarts_n == 0


async def test_a_slow_image_fails_alone_and_its_process_is_replaced():
    settings = PreprocessSettings(image=IMAGE.image, item_timeout_s=0.2)
    async with pool_of(settings, 2) as pool:
        before = {member.pid for member in pool.stats().members}
        began = time.monotonic()
        slow, *good = [submit(pool, GOOD, SLOW)] + [submit(pool, GOOD) for _ in range(20)]
        assert all(isinstance(outcome, Prepared) for outcome in await asyncio.gather(*good))
        assert not slow.done()
        error = await slow
        assert 0.2 <= time.monotonic() - began < 5.0
        assert type(error) is BadRequest
        assert str(error) == "row 1 of input `image` took longer than 0.2 s to preprocess"
        await until(lambda: pool.ready == 2)
        assert len(before & {member.pid for member in pool.stats().members}) == 1
        assert (pool.stats().timeouts_n, pool.stats().restarts_n) == (1, 1)


async def test_a_row_that_ends_its_process_twice_fails_and_its_neighbours_do_not():
    async with pool_of(IMAGE) as pool:
        crashing, good = submit(pool, SLOW), submit(pool, GOOD)
        first = await busy_pid(pool)
        os.kill(first, signal.SIGSEGV)
        second = await busy_pid(pool, other_than=first)
        assert not crashing.done()
        os.kill(second, signal.SIGSEGV)
        error = await crashing
        assert str(error) == "row 0 of input `image` ended its preprocess process twice (killed by SIGSEGV)"
        assert isinstance(await good, Prepared)


async def test_kill_9_under_load_loses_nothing():
    local = build(TEXT, TEXT_MODEL)
    async with pool_of(TEXT, 2) as pool:
        outcomes: list[object] = []

        async def client(name: int, ends: float) -> None:
            serial = 0
            while time.monotonic() < ends:
                serial += 1
                items = [f"client {name} says {serial} {row}".encode() for row in range(3)]
                outcome = await asyncio.wait_for(submit(pool, *items), 20)
                outcomes.append(outcome)
                if isinstance(outcome, Prepared):
                    assert all(np.array_equal(r[0], local.row(i)[0]) for r, i in zip(outcome.rows, items, strict=True))

        async def killer(ends: float) -> None:
            while time.monotonic() < ends:
                os.kill(pool.stats().members[0].pid, signal.SIGKILL)
                await asyncio.sleep(0.4)

        ends = time.monotonic() + 2.0
        await asyncio.gather(killer(ends), *(client(name, ends) for name in range(16)))
        failed = [outcome for outcome in outcomes if not isinstance(outcome, Prepared)]
        assert len(outcomes) > 200
        assert all(type(outcome) is WorkerLost for outcome in failed), "nobody is to blame"
        assert len(failed) < 20
        assert pool.stats().restarts_n >= 4
        await until(lambda: pool.ready == 2)


async def test_a_stopped_process_is_found_while_it_is_busy():
    settings = PreprocessSettings(text=TEXT.text, item_timeout_s=0.3)
    async with pool_of(settings) as pool:
        pid = pool.stats().members[0].pid
        os.kill(pid, signal.SIGSTOP)
        assert isinstance(await submit(pool, b"stuck"), Prepared), "its process was slow, not the text"
        assert not psutil.pid_exists(pid)


async def test_a_row_whose_processes_are_killed_by_somebody_is_not_to_blame():
    async with pool_of(IMAGE) as pool:
        unlucky = submit(pool, SLOW)
        first = await busy_pid(pool)
        os.kill(first, signal.SIGKILL)
        os.kill(await busy_pid(pool, other_than=first), signal.SIGKILL)
        error = await unlucky
        assert type(error) is WorkerLost
        assert str(error) == "row 0 of input `image` lost its preprocess process twice (killed by SIGKILL)"
        assert isinstance(await submit(pool, GOOD), Prepared)


async def test_cpu_seconds_of_ended_processes_stay_counted():
    async with pool_of(TEXT) as pool:
        await until(lambda: pool.stats().cpu_s > 0.0)
        before, pid = pool.stats().cpu_s, pool.stats().members[0].pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda: pool.ready == 1 and pool.stats().members[0].pid != pid)
        assert pool.stats().cpu_s >= before


async def test_a_slow_image_is_downgraded_where_the_settings_say_so():
    local = build(IMAGE, IMAGE_MODEL)
    noise = np.random.default_rng(1).integers(0, 255, (300, 300, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((9000, 6000)).save(buffer, "JPEG")
    large = buffer.getvalue()
    settings = PreprocessSettings(image=IMAGE.image, item_timeout_s=0.25, on_timeout="downgrade")
    async with pool_of(settings, 2) as pool:
        outcome = await submit(pool, GOOD, large, timeout_s=20.0)
        assert isinstance(outcome, Prepared)
        assert outcome.downgraded == 1
        assert np.array_equal(outcome.rows[0][0], local.row(GOOD)[0])
        assert np.array_equal(outcome.rows[1][0], local.cheap_row(large)[0])
        assert (pool.stats().downgraded_n, pool.stats().timeouts_n, pool.stats().failed_n) == (1, 0, 0)


async def test_known_rows_are_answered_without_a_process_and_still_later():
    settings = PreprocessSettings(text=TEXT.text, cache_bytes=100_000)
    async with pool_of(settings) as pool:
        first = await submit(pool, b"one", b"two")
        os.kill(pool.stats().members[0].pid, signal.SIGSTOP)
        again = await submit(pool, b"two", b"one", b"two")
        assert [row[0].tolist() for row in again.rows] == [first.rows[i][0].tolist() for i in (1, 0, 1)]
        assert (pool.stats().items_n, pool.stats().cache_hits_n, pool.stats().cache_misses_n) == (2, 3, 2)
        os.kill(pool.stats().members[0].pid, signal.SIGCONT)
        mixed = await submit(pool, b"three", b"one")
        assert mixed.rows[1][0].tolist() == first.rows[0][0].tolist()
        assert pool.stats().items_n == 3


async def test_a_known_row_that_is_cancelled_is_never_answered():
    settings = PreprocessSettings(text=TEXT.text, cache_bytes=100_000)
    async with pool_of(settings) as pool:
        await submit(pool, b"one")
        answers: list[object] = []
        pool.cancel(pool.submit([b"one"], time.monotonic() + 60.0, answers.append))
        await submit(pool, b"one")
        assert answers == []


async def test_errors_and_coarse_rows_are_not_kept():
    settings = PreprocessSettings(image=IMAGE.image, item_timeout_s=30.0, cache_bytes=1_000_000)
    async with pool_of(settings) as pool:
        assert isinstance(await submit(pool, b"no image"), BadRequest)
        assert isinstance(await submit(pool, b"no image"), BadRequest)
        assert pool.stats().cache_entries == 0
        answer = asyncio.get_running_loop().create_future()
        job = pool._job([GOOD], time.monotonic() + 60.0, answer.set_result)
        job.cheap = {0}
        pool.state.submit(job, time.monotonic())
        pool._pump()
        assert (await answer).downgraded == 1
        assert pool.stats().cache_entries == 0


async def test_a_process_stopped_for_long_does_not_cost_the_request():
    settings = PreprocessSettings(text=TEXT.text, item_timeout_s=3.5)
    async with pool_of(settings) as pool:
        os.kill(pool.stats().members[0].pid, signal.SIGSTOP)
        assert isinstance(await submit(pool, b"stuck"), Prepared)


async def test_a_stopped_process_is_found_while_it_is_idle():
    async with pool_of(TEXT) as pool:
        pid = pool.stats().members[0].pid
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: not psutil.pid_exists(pid), 6.0)
        await until(lambda: pool.ready == 1)
        assert isinstance(await submit(pool, b"works"), Prepared)


async def test_a_deadline_is_answered_on_time_while_every_process_is_busy():
    async with pool_of(IMAGE) as pool:
        running = submit(pool, SLOW)
        await busy_pid(pool)
        began = time.monotonic()
        waiting, expired = submit(pool, GOOD, timeout_s=0.15), submit(pool, GOOD, timeout_s=-1.0)
        assert isinstance(await expired, DeadlineExceeded)
        assert not waiting.done()
        assert isinstance(await waiting, DeadlineExceeded)
        assert time.monotonic() - began >= 0.15
        assert not running.done()
        assert pool.stats().queued_items == 0
        assert isinstance(await running, Prepared)


async def test_a_cancelled_job_leaves_the_queue_and_is_never_answered():
    settings = PreprocessSettings(image=IMAGE.image, queue_items=2, item_timeout_s=30.0)
    async with pool_of(settings) as pool:
        answers: list[object] = []
        running = submit(pool, SLOW)
        await busy_pid(pool)
        job = pool.submit([GOOD, GOOD], time.monotonic() + 60.0, answers.append)
        with pytest.raises(QueueFull, match="2 of 2 rows wait"):
            submit(pool, GOOD)
        pool.cancel(job)
        assert pool.stats().queued_items == 0
        after = submit(pool, GOOD)
        assert isinstance(await running, Prepared)
        assert isinstance(await after, Prepared)
        assert answers == []


async def test_one_client_that_raises_does_not_keep_the_others_from_their_answers():
    seen: list[dict] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context))
    async with pool_of(TEXT) as pool:

        def raises(outcome: object) -> None:
            raise RuntimeError("client bug")

        pool.submit([b"a"], time.monotonic() + 60.0, raises)
        assert isinstance(await submit(pool, b"b"), Prepared)
        assert [str(context["exception"]) for context in seen] == ["client bug"]


async def test_stop_answers_what_is_open_and_leaves_no_process():
    async with pool_of(IMAGE, 2) as pool:
        pids = [member.pid for member in pool.stats().members]
        answers = [submit(pool, SLOW), submit(pool, SLOW), submit(pool, GOOD)]
        await busy_pid(pool)
        os.kill(pids[0], signal.SIGSTOP)
        began = time.monotonic()
        await pool.stop(0.3)
        assert time.monotonic() - began < 3.0
        assert not [pid for pid in pids if psutil.pid_exists(pid)]
        assert all(isinstance(outcome, NotReady) for outcome in await asyncio.gather(*answers))
        with pytest.raises(NotReady):
            submit(pool, GOOD)


async def test_a_step_that_cannot_start_says_why_and_is_tried_again_with_pauses():
    settings = PreprocessSettings(text=TextSettings(tokenizer="/nowhere/tokenizer.json"))
    async with pool_of(settings, wait=False) as pool:
        await asyncio.wait_for(pool.changed.wait(), 20)
        assert "/nowhere/tokenizer.json: no such file" in pool.first_error
        assert isinstance(await submit(pool, b"waits", timeout_s=0.8), DeadlineExceeded)
        assert pool.ready == 0
        assert 1 <= pool.stats().restarts_n <= 4
