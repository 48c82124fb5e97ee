"""The program of one generator process: `python -m hybrid.load.generate`, started by `load.many`.

Takes its part over stdin, answers on stdout, and ends when stdin does: a generator never outlives who started it.
"""

import asyncio
import os
import sys
from typing import BinaryIO

import uvloop

from hybrid.errors import HybridError
from hybrid.load.driver import Generator
from hybrid.load.frames import LENGTH, Done, Failed, Frame, Job, Ready, Start, decode, encode
from hybrid.load.report import LoadResult


def main() -> None:
    """Do one job."""
    job = _read(sys.stdin.buffer)
    if not isinstance(job, Job):
        return
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(_run(job))
    except HybridError as error:
        _write(Failed(str(error)))
    except asyncio.CancelledError:
        return
    else:
        _write(Done(result))


async def _run(job: Job) -> LoadResult:
    loop = asyncio.get_running_loop()
    generator = Generator(job.spec, job.part, job.parts)
    try:
        await generator.connect()
        _write(Ready())
        start = await asyncio.to_thread(_read, sys.stdin.buffer)
        if not isinstance(start, Start):
            raise asyncio.CancelledError
        this = asyncio.current_task()
        assert this is not None
        loop.add_reader(sys.stdin.fileno(), this.cancel)  # nothing more comes but the end
        return await generator.run(start.at_s)
    finally:
        loop.remove_reader(sys.stdin.fileno())
        generator.close()


def _read(stream: BinaryIO) -> Frame | None:
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return decode(stream.read(LENGTH.unpack(head)[0]))


def _write(frame: Frame) -> None:
    data = encode(frame)
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


if __name__ == "__main__":
    main()
