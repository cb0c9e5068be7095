"""Gates for tests that act on a training at a certain point: it cannot go on before they open, so no sleep decides what is found."""
import contextlib
import fcntl
import os
import pathlib
import signal
import time

LIMIT = 120  # seconds until something that must come has come


def wait_until(condition, what):
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited for {LIMIT} s in vain: {what}")
        time.sleep(0.005)


@contextlib.contextmanager
def writing_is_held(checkpoint):
    """While this test has the lock of the file that saving begins with, whoever saves to this path waits, and keeps the ranks waiting. What it gives is to be
    closed to let them go on."""
    # Private, as a writer's own: a lock on a file that others may read holds nobody up for long.
    with open(os.open(f"{checkpoint}.mezzo-partial", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield gate


def children_of(process):
    """Process ids of the launcher's ranks."""
    found = []
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(status.read_text(errors="replace").rsplit(")", 1)[1].split()[1]) == process.pid:
                found.append(int(status.parent.name))
    return sorted(found)


def waits_for_a_writer(pids, checkpoint=""):
    """One has the partial file open that another process has locked: that of `checkpoint`, or any."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor).endswith(f"{checkpoint}.mezzo-partial"):
                        return True
    return False


def await_writer(process, checkpoint=""):
    """Until a rank of the launcher, or the program itself where it is alone, waits to write `checkpoint`, or any. False if it has ended before."""
    wait_until(lambda: process.poll() is not None or waits_for_a_writer([process.pid, *children_of(process)], checkpoint), "a rank that saves")
    return process.poll() is None


def is_stopped(pid):
    """All of its threads."""
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/stat")
    return all(task.read_text(errors="replace").rsplit(")", 1)[1].split()[0] == "T" for task in tasks)


def is_pending(pid, number):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("ShdPnd:"):
            return int(line.split()[1], 16) >> (number - 1) & 1 == 1
    return False


def signal_all(process, number=signal.SIGTERM):
    """By way of the launcher. Its last rank is stopped meanwhile, so that one can see the signal arrive. A program that is alone gets it at once."""
    ranks = children_of(process)
    if not ranks:
        process.send_signal(number)
        return
    last = ranks[-1]
    os.kill(last, signal.SIGSTOP)
    try:
        wait_until(lambda: is_stopped(last), "a rank that is stopped")  # until then it would take the signal first
        process.send_signal(number)
        wait_until(lambda: is_pending(last, number), "the signal at the last rank")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(last, signal.SIGCONT)


def send_to_last(process, number):
    os.kill(children_of(process)[-1], number)
