"""What every sandbox must do, and what no agent may do in one.

Each check gets a function that opens a sandbox. They are plain functions, not tests, so that they
also run as another user: `python sandbox_checks.py UID` drops to that user and runs them all.
"""

# ruff: noqa: ASYNC110, ASYNC240  (files and processes of the host are what is looked at)

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import instar.envs.bwrap  # noqa: F401  (before rights are dropped, which may hide this folder)
from instar.envs.sandbox import Limits, Sandbox, Spec, open_sandbox

Open = Callable[[Spec], AbstractAsyncContextManager[Sandbox]]
SMALL = Limits(memory_mb=128, processes=32, disk_mb=8, files=500, seconds=20, output_kb=4)


def running(mark: str) -> list[str]:
    """Processes of this machine whose command line holds the mark."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line:
                found.append(f"{folder.name}: {line[:80]!r}")
    return found


def sleeper() -> str:
    """The argument of a sleep that no other process has."""
    return f"9{secrets.randbelow(10**9):09d}"


async def gone(mark: str) -> None:
    """Wait until no process with this mark is left."""
    async with asyncio.timeout(20):
        while running(mark):
            await asyncio.sleep(0.01)


async def check_shell_keeps_its_state(open_: Open) -> None:
    async with open_(Spec(workdir="/app")) as box:
        assert (await box.run("pwd")).stdout == "/app\n"
        assert (await box.run("mkdir d; cd d; NAME=instar; f() { echo f-$1; }")).code == 0
        ran = await box.run("pwd; echo $NAME; f 1")
        assert (ran.code, ran.stdout, ran.stderr) == (0, "/app/d\ninstar\nf-1\n", "")


async def check_streams_and_codes_are_apart(open_: Open) -> None:
    async with open_(Spec()) as box:
        ran = await box.run("echo out; echo err >&2; (exit 7)")
        assert (ran.code, ran.stdout, ran.stderr) == (7, "out\n", "err\n")
        assert (await box.run("no-such-program")).code == 127
        assert (await box.run("echo 'open")).code == 2
        assert (await box.run("printf 'no newline'")).stdout == "no newline"
        assert (await box.run("")).code == 0
        assert (await box.run("printf 'caf\\xc3\\xa9 \\xff'")).stdout == "café \ufffd"
        assert (await box.run("echo 'é\n\U0001f41b'")).stdout == "é\n\U0001f41b\n"
        assert (await box.run("a\0b")).code == 2
        assert (await box.run("cat")).code == 0  # stdin is empty, not the next command
        long = "x" * 200_000
        assert (await box.run(f"X={long}; echo ${{#X}}")).stdout == "200000\n"


async def check_lost_shell_is_replaced(open_: Open) -> None:
    async with open_(Spec()) as box:
        await box.run("X=1; echo kept > file")
        for command, code in (("exit 3", 3), ("kill -9 $$", 137), ("exec true", 0)):
            ran = await box.run(command)
            assert ran.code == code and "new one" in ran.note, (command, ran)
            assert (await box.run('echo "$X"; cat file')).stdout == "\nkept\n"
        for command in ("exec >/dev/null 2>&1", "set -x", "exec 7<&- 8>&- 9>&-", "set -eu"):
            await box.run(command)
            assert "here" in (await box.run("echo here")).stdout, command


async def check_killing_the_parent(open_: Open) -> None:
    async with open_(Spec()) as box:
        for command in ("kill -9 1", "kill -9 $PPID", "kill -9 -1"):
            await box.run(f"{command}; true")
            assert (await box.run("echo alive")).stdout == "alive\n", command


async def check_time_limit_kills_the_tree(open_: Open) -> None:
    mark = sleeper()
    async with open_(Spec(limits=SMALL)) as box:
        ran = await box.run(f"echo begun; setsid nohup sleep {mark} & sleep {mark}", 1.5)
        assert ran.timed_out and ran.code == 137 and ran.stdout == "begun\n"
        assert "1.5 s" in ran.note
        await gone(mark)
        assert (await box.run("echo again")).stdout == "again\n"
        ran = await box.execute(f"sleep {mark}", seconds=1)
        assert ran.code == 137
        await gone(mark)


async def check_daemons_end(open_: Open) -> None:
    mark = sleeper()
    async with open_(Spec()) as box:
        await box.run(f"setsid nohup sleep {mark} >/dev/null 2>&1 & echo kept > /tmp/file")
        assert (await box.run(f"pgrep -cf 'sleep {mark}' || true")).code == 0
        assert running(mark)
        await box.stop()
        await gone(mark)
        assert (await box.execute("cat /tmp/file")).stdout == "kept\n"
        await box.run(f"(setsid sleep {mark} &)")
    await gone(mark)


async def check_output_limits(open_: Open) -> None:
    limits = Limits(output_kb=4, flood_mb=2)
    async with open_(Spec(limits=limits)) as box:
        ran = await box.run("seq 1 20000; seq 1 20000 >&2")
        for text in (ran.stdout, ran.stderr):
            assert text.startswith("1\n2\n") and text.endswith("\n20000\n")
            # 108894 bytes were printed; 30% of 4096 from the start and the rest from the end.
            assert "[... 104798 bytes left out ...]" in text and len(text) < 4200
        assert (await box.run("seq 1 3")).stdout == "1\n2\n3\n"
        ran = await box.run("yes")
        assert ran.code == 137 and "2 MB" in ran.note
        whole = await box.execute("seq 1 20000")
        assert len(whole.out) == 108_894
        assert "too much" in (await box.execute("yes")).note


async def check_stdin(open_: Open) -> None:
    data = os.urandom(300_000)
    async with open_(Spec()) as box:
        assert (await box.execute("cat", stdin=data)).out == data
        assert (await box.execute("head -c 5", stdin=data)).out == data[:5]
        assert (await box.execute("cat > copy; wc -c < copy", stdin=data)).stdout == "300000\n"


async def check_host_files_are_hidden(open_: Open) -> None:
    with tempfile.TemporaryDirectory() as name:
        secret = Path(name, f"secret-{secrets.token_hex(4)}")
        secret.write_text("host only")
        secret.chmod(0o644)
        Path(name).chmod(0o755)
        async with open_(Spec()) as box:
            for path in ("/etc/shadow", str(secret), __file__, f"/proc/{os.getpid()}/environ"):
                ran = await box.run(f"cat '{path}'")
                assert ran.code == 1 and ran.stdout == "", path
            homes = "ls -A /home /root | grep -v ':$' | grep . "
            assert (await box.run(homes)).stdout == ""
            assert (await box.run(f"find / -xdev -name '{secret.name}' 2>/dev/null")).stdout == ""
            await box.run("ln -s / up; ln -s /proc/1/root one; ln -s /proc/self/cwd/../.. two")
            for link in ("up", "one", "two"):
                ran = await box.run(f"cat {link}/{secret} {link}/etc/shadow")
                assert ran.code == 1 and ran.stdout == "", link


async def check_host_environment_is_hidden(open_: Open) -> None:
    async with open_(Spec(env={"GIVEN": "yes"})) as box:
        # The whole environment of the process that opens the sandbox, but for names it also has.
        ran = await box.run("env; cat /proc/*/environ | tr '\\0' '\\n'")
        assert "GIVEN=yes" in ran.stdout and "INSTAR_SECRET" not in ran.stdout
        # 3 is the folder that ls itself reads.
        assert (await box.run("ls /proc/self/fd")).stdout.split() == ["0", "1", "2", "3"]
        for number in ("1", "$$"):
            ran = await box.run(f"readlink /proc/{number}/fd/* | grep -v -e pipe: -e /dev/null")
            assert ran.stdout == "", number


async def check_no_network(open_: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with open_(Spec()) as box:
            ran = await box.run(f"exec 3<>/dev/tcp/127.0.0.1/{port}")
            assert ran.code != 0 and "refused" in ran.stderr
            ran = await box.run("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")
            assert set(ran.stdout.split()) <= {"lo"}
            assert (await box.run("timeout 5 bash -c 'exec 3<>/dev/tcp/192.0.2.1/80'")).code == 1


async def check_working_folder_is_copied_on_write(open_: Open) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "task")
        (folder / "sub").mkdir(parents=True)
        (folder / "a.txt").write_text("old\n")
        (folder / "sub" / "b.txt").write_text("b\n")
        outside = Path(name, "outside.txt")
        outside.write_text("host only")
        (folder / "link").symlink_to(outside)
        before = {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}
        async with open_(Spec(files=folder)) as one, open_(Spec(files=folder)) as two:
            ran = await one.run("cat link; echo new > a.txt && rm -r sub && touch c && ls")
            assert ran.code == 0 and ran.stdout == "a.txt\nc\nlink\n", ran
            await one.run("echo broken > link; mkdir sub; ls sub")
            assert (await one.execute("cat a.txt")).stdout == "new\n"
            assert (await two.run("cat a.txt sub/b.txt; ls")).stdout == "old\nb\na.txt\nlink\nsub\n"
        assert {path: path.lstat().st_mtime_ns for path in folder.rglob("*")} == before
        assert (folder / "a.txt").read_text() == "old\n" and outside.read_text() == "host only"


async def check_system_is_read_only(open_: Open) -> None:
    async with open_(Spec()) as box:
        for path in ("/x", "/etc/ld.so.preload", "/usr/bin/x", "/bin/x", "/lib/x", "/dev/x"):
            assert (await box.run(f"touch {path}")).code != 0, path
        for command in ("rm /bin", "mv /lib64 /lib65", "mount -t tmpfs x /tmp", "unshare -r true"):
            assert (await box.run(command)).code != 0, command
        assert (await box.run("echo ok > /tmp/f && echo ok > ~/f && cat /tmp/f ~/f")).code == 0
        assert (await box.run("grep -h ^Cap /proc/self/status | tr -d '0\\t'")).stdout.split() == [
            *("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:")
        ]


async def check_fork_bomb(open_: Open) -> None:
    async with open_(Spec(limits=SMALL)) as box:
        ran = await box.run(":(){ :|:& };:; sleep 60", 2)
        assert ran.code != 0
        await box.stop()
        assert (await box.run("echo alive")).stdout == "alive\n"
        ran = await box.run("for i in $(seq 64); do sleep 60 & done", 2)
        assert ran.code != 0 and "Resource temporarily unavailable" in ran.stderr
        assert (await box.run("echo alive")).stdout == "alive\n"


async def check_memory_bomb(open_: Open) -> None:
    async with open_(Spec(limits=SMALL)) as box:
        # tail keeps everything, since there is no end of line in it.
        assert (
            await box.run("head -c 400M /dev/zero | tail -n 1 | wc -c; exit ${PIPESTATUS[1]}")
        ).code
        assert (await box.run("echo alive")).stdout == "alive\n"
        fill = "for i in 1 2 3 4 5 6; do cat /dev/zero > /dev/shm/$i; done; du -sm /dev/shm"
        ran = await box.run(fill)
        assert ran.code == 137 or int(ran.stdout.split()[0]) <= SMALL.disk_mb, ran
        assert (await box.run("echo alive")).stdout == "alive\n"


async def check_disk_filler(open_: Open) -> None:
    async with open_(Spec(limits=SMALL)) as box:
        fill = "for i in 1 2 3; do cat /dev/zero > $i; done; du -sm . | cut -f1"
        assert int((await box.run(fill)).stdout) <= SMALL.disk_mb
        assert (await box.run("echo x > /app/another")).code != 0
        assert (await box.run("rm 1 2 3 && echo ok > another && cat another")).stdout == "ok\n"
        ran = await box.run("mkdir many && cd many && seq 1 2000 | xargs touch; ls | wc -l")
        assert int(ran.stdout) < SMALL.files and "No space left" in ran.stderr


async def check_sandboxes_do_not_see_each_other(open_: Open) -> None:
    async with open_(Spec()) as one, open_(Spec()) as two:
        await one.run("echo mine > /tmp/mine; sleep 60 & true")
        ran = await two.run("ls -A /tmp; pgrep sleep; ls -d /proc/[0-9]* | wc -l")
        assert int(ran.stdout) < 8
        await two.run("kill -9 -1; true")
        assert (await one.run("jobs -r; cat /tmp/mine")).stdout.endswith("mine\n")


CHECKS = {
    name.removeprefix("check_"): value
    for name, value in globals().items()
    if name.startswith("check_")
}


async def main() -> None:
    for name, check in CHECKS.items():
        await check(open_sandbox)
        print(name, flush=True)


if __name__ == "__main__":
    uid = int(sys.argv[1])
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    tempfile.tempdir = sys.argv[2]
    asyncio.run(main())
