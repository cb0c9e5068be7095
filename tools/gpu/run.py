"""Runs programs that may hang, print without end, or leave processes behind: each ends within its time with all that it has started,
and what it has printed is kept."""
import errno
import itertools
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUTPUT_LIMIT = 64 << 20  # bytes that a program may print
KEPT = 8 << 20           # characters of them for the results, from both ends; the file of the log has all
LEAST = 5                # seconds that every program gets
UNKILLABLE = 5           # seconds until a killed process that waits for a driver is left alone

MARK = "MEZZO_GPU_CHECK_COMMAND"  # a variable by which children are known that have left their session

running = set()  # (session, value of the mark) of each program under way
numbers = itertools.count()
stopping = threading.Event()
lock = threading.Lock()


def belongs(path, session, mark):
    """Whether a process, by its folder in /proc, has not ended and was started by a program."""
    state, _, _, its_session, *_ = (path / "stat").read_text(encoding="latin-1").rpartition(")")[2].split()
    return state not in "ZX" and (int(its_session) == session or mark in (path / "environ").read_bytes().split(b"\0"))


def members(session, mark):
    """The program's process and all that it has started, as far as they have not ended."""
    found, mark = [], f"{MARK}={mark}".encode()
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if belongs(path, session, mark):
                found.append(int(path.name))
        except (OSError, ValueError):
            pass  # has ended meanwhile, or is another user's
    return found


def end_program(session, mark):
    """Kills what a program has started, too: a child that is left would hold the device, or its parent's output."""
    for _ in range(10):  # one that is just being started is found the next time
        found = members(session, mark)
        for member in found:
            try:
                os.kill(member, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not found:
            return
        time.sleep(0.02)


def end_all():
    """Kills everything that is under way; nothing can be started any more."""
    with lock:
        stopping.set()
        programs = list(running)
    for program in programs:
        end_program(*program)


def ends(text, kept):
    """The text, or its head and its tail where it is longer than `kept` characters."""
    if len(text) <= kept:
        return text
    half = kept // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def wait(process, limit, files):
    """Why the process has to be ended, or nothing where it has ended by itself."""
    end = time.monotonic() + limit
    while True:
        left = end - time.monotonic()
        try:
            process.wait(max(0.0, min(0.5, left)))
            return ""
        except subprocess.TimeoutExpired:
            if left <= 0:
                return "time limit"
            if sum(os.fstat(file.fileno()).st_size for file in files) > OUTPUT_LIMIT:
                return "printed without end"


def run(words, limit, log=None, environment=None):
    """Exit code (None where the program was stopped, with the reason under "stopped"), seconds, and the two outputs. They go to
    files and not to pipes: a pipe stays open as long as any child lives. log: path of those files, without suffix."""
    start, mark = time.monotonic(), f"{os.getpid()}.{next(numbers)}"
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(log or pathlib.Path(folder) / "log")
        base.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{base}.out", "wb+") as out, open(f"{base}.err", "wb+") as err:
            try:
                with lock:
                    if stopping.is_set():
                        raise InterruptedError(errno.EINTR, "not started")
                    process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                                               env=os.environ | (environment or {}) | {MARK: mark})
                    running.add((process.pid, mark))
            except OSError as error:
                return {"exit_code": 127, "stopped": "", "seconds": 0.0, "stdout": "", "stderr": f"{words[0]}: {error.strerror}\n"}
            stopped = wait(process, limit, (out, err))
            end_program(process.pid, mark)
            try:
                code = process.wait(UNKILLABLE)
            except subprocess.TimeoutExpired:
                stopped += ", cannot be killed"
            with lock:
                running.discard((process.pid, mark))
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(ends(file.read(2 * OUTPUT_LIMIT).decode("utf-8", "replace"), KEPT))
    return {"exit_code": None if stopped else code, "stopped": stopped, "seconds": time.monotonic() - start,
            "stdout": texts[0], "stderr": texts[1]}


def output(*command, limit=60):
    """Standard output of a command, or nothing where it fails, hangs or is not there."""
    ended = run([str(word) for word in command], limit)
    return ended["stdout"].strip() if ended["exit_code"] == 0 else ""


class Patience:
    """How long to wait. Whoever has waited in vain waits a third as long the next time: one fault makes many programs hang."""

    def __init__(self):
        self.hangs = {}

    def limit(self, kind, seconds):
        return max(seconds / 3**self.hangs.get(kind, 0), min(seconds, LEAST))

    def saw(self, kind, hung):
        with lock:
            self.hangs[kind] = self.hangs.get(kind, 0) + hung
