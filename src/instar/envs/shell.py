"""A shell that stays open, driven over three pipes.

Inside, process 1 is a loop that starts bash again whenever the agent's command ended it, so
`exit`, `exec` and `kill -9 $$` cost the agent its variables and nothing else. A command comes in
on stdin, closed by a NUL; after it a mark with its exit code goes to stdout and to stderr. The
mark can be forged only by the agent itself, about its own command, which earns it nothing: tasks
are graded by other processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import secrets
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from instar.envs.sandbox import Limits, Ran
from instar.errors import EnvironmentFailure

ENDED = 217
"""How the shell says that stdin was closed and process 1 should go too."""

_FIRST = """read -rd '' __command; eval "$__command" """
"""Process 1 reads its script from stdin, and the shell from process 1, so that `ps` stays short."""
_INIT = r"""
exec 7<&0 8>&1 9>&2 </dev/null 2>/dev/null
IFS= read -rd '' -u 7 loop
while :; do
  bash --norc --noprofile -c "read -rd '' -u 6 __command; eval \"\$__command\"" bash 6<<<"$loop"
  code=$?
  [ $code = ENDED ] && exit 0
  printf '\036MARK %d lost\036' $code >&8
  printf '\036MARK %d lost\036' $code >&9
done
"""
_LOOP = r"""
exec 6<&-
while IFS= read -rd '' -u 7 __command; do
  eval "$__command" </dev/null >&8 2>&9 7<&- 8>&- 9>&-
  __command=$?
  builtin printf '\036MARK %d \036' "$__command" >&8
  builtin printf '\036MARK %d \036' "$__command" >&9
done
exit ENDED
"""
HEAD = 0.3
"""Share of the output limit that shows the beginning; the rest shows the end."""
_CHUNK = 1 << 16


def ulimits(limits: Limits, *, alone: bool, processes: bool = True) -> str:
    """Bash lines that bound each process; `alone`: there are no control groups that do more."""
    lines = [f"ulimit -f {limits.disk_mb * 1024}", "ulimit -c 0", "ulimit -n 1024"]
    if processes:  # counted by user and user namespace
        lines.append(f"ulimit -u {limits.processes}")
    if alone:
        lines.append(f"ulimit -v {limits.memory_mb * 1024}")
        lines.append(f"ulimit -t {math.ceil(10 * limits.seconds * limits.cpus)}")
    return "\n".join(lines) + "\n"


class Stream:
    """One output pipe: keeps the beginning and the end of what comes, and looks for the mark."""

    def __init__(
        self, fd: int, limit: int, mark: re.Pattern[bytes] | None, changed: asyncio.Event
    ) -> None:
        self._fd, self._limit, self._mark, self._changed = fd, limit, mark, changed
        self._head, self._tail = b"", bytearray()
        self.total = 0
        self.found: re.Match[bytes] | None = None
        self.ended = False
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.ended = True
            self._unwatch()
            self._changed.set()
            return
        self.total += len(data)
        self._tail += data
        if self._mark and (found := self._mark.search(self._tail)):
            self.found = found
            self._unwatch()
        elif len(self._head) + len(self._tail) > 2 * self._limit + _CHUNK:
            self._shorten()
        self._changed.set()

    def _shorten(self) -> None:
        head = int(self._limit * HEAD)
        if not self._head:
            self._head = bytes(self._tail[:head])
        del self._tail[: len(self._tail) - (self._limit - head) - 128]

    def take(self) -> bytes:
        """What came up to the mark, and make ready for the next command."""
        end = self.found.start() if self.found else len(self._tail)
        printed = self.total - (len(self._tail) - end)
        kept, self._tail = bytes(self._tail[:end]), self._tail[end:]
        if self.found:
            del self._tail[: self.found.end() - self.found.start()]
            self.found = None
            asyncio.get_running_loop().add_reader(self._fd, self._read)
        whole = self._head + kept
        if self._head or len(whole) > self._limit:
            head = int(self._limit * HEAD)
            last = whole[-(self._limit - head) :]
            left = printed - head - len(last)
            whole = whole[:head] + b"\n[... %d bytes left out ...]\n" % left + last
        self._head, self.total = b"", len(self._tail)
        return whole

    def _unwatch(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)

    def close(self) -> None:
        self._unwatch()
        os.close(self._fd)


class Child:
    """A process of ours with its pipes; killed by number and waited for, never left behind."""

    def __init__(self, argv: Sequence[str], fds: Sequence[int], limit: int, mark: str = "") -> None:
        pattern = re.compile(rb"\x1e" + mark.encode() + rb" (\d+) (lost)?\x1e") if mark else None
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=fds,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise EnvironmentFailure(f"{argv[0]} could not be started: {error.strerror}") from error
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin = os.dup(self._process.stdin.fileno())
        os.set_blocking(self._stdin, False)
        out, err = os.dup(self._process.stdout.fileno()), os.dup(self._process.stderr.fileno())
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            pipe.close()
        self._changed = asyncio.Event()
        self.out = Stream(out, limit, pattern, self._changed)
        self.err = Stream(err, limit, pattern, self._changed)
        self._closed = False

    async def send(self, data: bytes, *, end: bool = False) -> None:
        """Write to its stdin; a process that is gone takes nothing, which is found out later."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(BrokenPipeError):
            view = memoryview(data)
            while view:
                try:
                    view = view[os.write(self._stdin, view) :]
                except BlockingIOError:
                    ready = loop.create_future()
                    loop.add_writer(self._stdin, _settle, ready)
                    try:
                        await ready
                    finally:
                        loop.remove_writer(self._stdin)
        if end:
            os.close(self._stdin)
            self._stdin = -1

    async def until(self, flood: int, *, mark: bool) -> bool:
        """Wait until both streams have their mark or ended; False where they flood first."""
        streams = (self.out, self.err)
        while True:
            if sum(stream.total for stream in streams) > flood:
                return False
            waiting = [s for s in streams if not s.ended and not (mark and s.found)]
            if not waiting or (mark and any(s.ended for s in streams)):
                return True
            self._changed.clear()
            await self._changed.wait()

    async def says(self, first: bytes, seconds: float) -> bool:
        """Whether this is the first thing it prints; False where it ends or takes too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.out.ended and self.out.total < len(first):
                    self._changed.clear()
                    await self._changed.wait()
        return self.out.take().startswith(first)

    async def close(self) -> int:
        """Kill it and wait until it is gone; its exit code."""
        if not self._closed:
            self._closed = True
            if self._stdin >= 0:
                os.close(self._stdin)
            self.out.close()
            self.err.close()
        if self._process.poll() is None:
            # A namespace's first process ends only after every other one in it has ended, so
            # waiting for our child's children is waiting for all that the agent ever started.
            watched = [os.pidfd_open(self._process.pid), *_watched(self._process.pid)]
            os.kill(self._process.pid, signal.SIGKILL)  # not waited for yet, so it is still ours
            await _ended(watched)
        return self._process.wait()

    async def exit_code(self, seconds: float) -> int:
        """Its exit code once it has closed its pipes; killed if it lingers."""
        if self._process.poll() is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_ended([os.pidfd_open(self._process.pid)]), seconds)
        return await self.close()


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _watched(pid: int) -> list[int]:
    """Descriptors of a process's children, which tell when these end."""
    found = list[int]()
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found.append(os.pidfd_open(int(child)))
    return found


async def _ended(fds: Sequence[int]) -> None:
    """Wait for the end of the processes that these descriptors stand for, and close them."""
    loop = asyncio.get_running_loop()
    try:
        for fd in fds:
            ready = loop.create_future()
            loop.add_reader(fd, _settle, ready)
            await ready
            loop.remove_reader(fd)
    finally:
        for fd in fds:
            loop.remove_reader(fd)
            os.close(fd)


class Shell:
    """The agent's shell: one command at a time, killed with all its children when one hangs."""

    def __init__(
        self, argv: Sequence[str], fds: Sequence[int], limits: Limits, prelude: str
    ) -> None:
        mark = secrets.token_hex(8)
        scripts = (prelude + _INIT, _LOOP)
        filled = (one.replace("MARK", mark).replace("ENDED", str(ENDED)) for one in scripts)
        self._first = "".join(f"{one}\0" for one in filled).encode()
        self._child = Child([*argv, "bash", "-c", _FIRST], fds, limits.output_kb * 1024, mark)
        self._limits = limits
        self.alive = True

    async def run(self, command: str, seconds: float) -> Ran:
        """Send a command and wait for its mark."""
        if "\0" in command:
            return Ran(code=2, err=b"bash: a command cannot hold a NUL character\n")
        child = self._child
        try:
            async with asyncio.timeout(seconds):
                first, self._first = self._first, b""
                await child.send(first + command.encode("utf-8", "replace") + b"\0")
                calm = await child.until(self._limits.flood_mb << 20, mark=True)
        except TimeoutError:
            return await self._killed(f"killed after {seconds:g} s; the shell was restarted", True)
        except asyncio.CancelledError:
            await self.close()  # its output would be taken for that of the next command
            raise
        if not calm:
            limit = f"killed after printing {self._limits.flood_mb} MB"
            return await self._killed(f"{limit}; the shell was restarted", False)
        found = child.out.found
        if found is None or child.err.found is None:
            return await self._killed("every process was killed; the shell was restarted", False)
        code, lost = int(found[1]), bool(found[2])
        note = "this ended the shell; a new one was started" if lost else ""
        return Ran(code=code, out=child.out.take(), err=child.err.take(), note=note)

    async def _killed(self, note: str, late: bool) -> Ran:
        out, err = self._child.out.take(), self._child.err.take()
        await self.close()
        return Ran(code=137, out=out, err=err, note=note, timed_out=late)

    async def close(self) -> None:
        self.alive = False
        await self._child.close()


async def once(
    argv: Sequence[str], fds: Sequence[int], *, stdin: bytes, seconds: float, limit: int
) -> Ran:
    """Run a program to its end, feeding it stdin; killed when it takes or prints too much."""
    child = Child(argv, fds, limit)
    try:
        async with asyncio.timeout(seconds):
            sending = asyncio.create_task(child.send(stdin, end=True))
            try:
                calm = await child.until(limit, mark=False)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
    except TimeoutError:
        out, err = child.out.take(), child.err.take()
        await child.close()
        return Ran(code=137, out=out, err=err, note=f"killed after {seconds:g} s", timed_out=True)
    except BaseException:
        await child.close()
        raise
    out, err = child.out.take(), child.err.take()
    code = await (child.exit_code(5.0) if calm else child.close())
    code = 128 - code if code < 0 else code
    return Ran(code=code, out=out, err=err, note="" if calm else "killed: it printed too much")
