"""A process that renders chat templates and nothing else: `python -m … DEADLINE_S MEMORY_BYTES MAX_CHARACTERS`.

Reads jobs and writes answers, one JSON value a line. It bounds itself: a timer ends what runs in Python, a limit on
address space what allocates, and a limit on processor time what stays in one call of C, even where nobody waits for the
answer any more. It ends with its input.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

from tokbridge.errors import ChatTemplateError
from tokbridge.jinja_rendering import RenderJob, render_here

READY = {"ready": True}


class _OutOfTime(BaseException):
    """Not an `Exception`: nothing between here and the template's code may take it for a fault of the template."""


def serve(jobs: IO[bytes], answers: IO[bytes], *, deadline_s: float, max_characters: int) -> None:
    """Render one job after the other until there are no more."""
    signal.signal(signal.SIGALRM, _out_of_time)
    _write(answers, READY)
    for line in jobs:
        _write(answers, _answer(line, deadline_s, max_characters))


def _answer(line: bytes, deadline_s: float, max_characters: int) -> dict[str, str]:
    """`text`, or `refused` with the reason."""
    _limit_processor_time(2 * deadline_s)
    try:
        signal.setitimer(signal.ITIMER_REAL, deadline_s)
        try:
            text = render_here(RenderJob(**json.loads(line)))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except ChatTemplateError as error:
        return {"refused": error.message}
    except _OutOfTime:
        return {"refused": f"the chat template takes more than {deadline_s:g} s on the conversation"}
    except (MemoryError, OverflowError):
        return {"refused": "the chat template takes too much memory on the conversation"}
    if len(text) > max_characters:
        return {"refused": f"the chat template writes more than {max_characters} characters"}
    return {"text": text}


def _write(answers: IO[bytes], answer: object) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _out_of_time(signal_number: int, frame: FrameType | None) -> NoReturn:
    raise _OutOfTime


def _limit_processor_time(seconds: float) -> None:
    """Have the kernel end this process once it has computed for `seconds` more."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _limit_memory(num_bytes: int) -> None:
    """Let this process take `num_bytes` more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    """Entry point; the limits are the arguments."""
    deadline_s, memory_bytes, max_characters = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the service's to handle
    _limit_memory(int(memory_bytes))
    serve(sys.stdin.buffer, sys.stdout.buffer, deadline_s=float(deadline_s), max_characters=int(max_characters))


if __name__ == "__main__":
    main()
