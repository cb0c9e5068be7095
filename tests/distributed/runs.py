"""What the tests of groups share: they start processes with a limit of time, and see to it that none stays behind."""
import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

RUN, PROGRAM, MODULE = (os.path.abspath(path) for path in sys.argv[1:4])
# Where the bits of one process are compared with those of another, neither may choose its kernels by their time.
SAME_KERNELS = {"MEZZO_THREADS": "1", "MEZZO_ISA": "portable"}
failures = []


def environment(**variables):
    """Without what an outer run or a scheduler may have set."""
    prefixes = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "MEZZO_", "OMPI_", "PMI", "MPI_", "SLURM_", "TORCHELASTIC_", "TEST_")
    kept = {k: v for k, v in os.environ.items() if k == "MEZZO_SHARED_MEMORY" or not k.startswith(prefixes)}
    patient = {"TEST_TIMEOUT": "60", "TEST_RENDEZVOUS_TIMEOUT": "60"}  # where waiting is not what is tested
    return {**kept, **patient, "MEZZO_GLOO": MODULE, "MEZZO_CACHE": "off", **{k: str(v) for k, v in variables.items()}}


class Run:
    """A finished run: exit code, output, seconds, what each rank has written and when it did so last, and when that happened which ended the ranks."""

    def __init__(self, code, output, seconds, folder):
        self.code, self.output, self.seconds = code, output, seconds
        files = outcomes(folder)
        self.ranks = {p.name: p.read_text().strip().split("\n") for p in files}
        self.written = {p.name: p.stat().st_mtime for p in files}
        cause = pathlib.Path(folder) / ".ends"
        self.cause = cause.stat().st_mtime if cause.exists() else None

    def delay(self, ranks):
        """Seconds from the cause until the last of these ranks had its words."""
        return max(self.written[str(rank)] for rank in ranks) - self.cause

    def last(self, rank):
        return self.ranks.get(str(rank), [""])[-1]

    def __str__(self):
        return f"exit code {self.code} after {self.seconds:.1f} s\n{self.output}\n{self.ranks}"


def outcomes(folder):
    """The files that ranks have written."""
    return sorted(p for p in pathlib.Path(folder).iterdir() if not p.name.startswith("."))


def note_end(folder):
    """Just before a test does what ends the ranks."""
    (pathlib.Path(folder) / ".ends").touch()


def descendants_named(marker):
    """Processes whose command line has the marker, which is the name of a test's own folder."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()[0]
                if marker in (entry / "cmdline").read_text(errors="replace") and state != "Z":
                    found.append(int(entry.name))
    return found


def expect_none_left(marker, seconds=60):
    """The last of them may still be ending."""
    deadline = time.monotonic() + seconds
    while left := descendants_named(marker):
        if time.monotonic() > deadline:
            for process in left:
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            raise AssertionError(f"{len(left)} processes were left behind")
        time.sleep(0.05)


def run(scenario, ranks, limit=100, launcher=RUN, options=(), while_running=None, **variables):
    """Runs a scenario under mezzo-run, or another launcher that takes -n."""
    with tempfile.TemporaryDirectory(prefix="mezzo_group_") as folder:
        begin = time.monotonic()
        process = subprocess.Popen([launcher, "-n", str(ranks), *options, PROGRAM, scenario, folder], env=environment(**variables), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            if while_running:
                while_running(process, pathlib.Path(folder))
            output = process.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            process.terminate()
            process.communicate()
            raise AssertionError(f"{scenario}: not done after {limit} s") from None
        finally:
            process.kill()
            expect_none_left(folder)
        return Run(process.returncode, output, time.monotonic() - begin, folder)


def start_ranks(scenario, variables_of_ranks, limit=100, after_start=None, program=PROGRAM, **options):
    """Runs a scenario without a launcher, each rank with variables of its own. Further options are those of Popen."""
    with tempfile.TemporaryDirectory(prefix="mezzo_group_") as folder:
        begin = time.monotonic()
        processes = [subprocess.Popen([program, scenario, folder], env=environment(**variables), text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, **options) for variables in variables_of_ranks]
        try:
            if after_start:
                after_start(processes, pathlib.Path(folder))
            output = "".join(p.communicate(timeout=limit)[0] for p in processes)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{scenario}: not done after {limit} s") from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
            expect_none_left(folder)
        return Run([p.returncode for p in processes], output, time.monotonic() - begin, folder)


def torchrun_variables(rank, size, port, **more):
    return {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port, **more}


claims = {}  # by port; each ends with the test's process


def claimed(port):
    """Whether the port is this test's alone, among tests that run at the same time."""
    if port not in claims:
        claims[port] = socket.socket(socket.AF_UNIX)
        try:
            claims[port].bind(f"\0mezzo-tests-port-{port}")
        except OSError:
            claims.pop(port).close()
            return False
    return True


def free_port():
    """A port whose next sixteen are free too. They are below those that the system gives to connections."""
    for block in range(600):
        port = 20000 + (os.getpid() + block) % 600 * 20
        with contextlib.suppress(OSError):
            for offset in range(17):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port + offset))
            if claimed(port):
                return port
    raise AssertionError("no free ports")


def wait_until_begun(folder, ranks, seconds=100):
    deadline = time.monotonic() + seconds
    while len(outcomes(folder)) < ranks:
        assert time.monotonic() < deadline, "the ranks did not begin"
        time.sleep(0.02)


def expect(condition, result, what=""):
    if not condition:
        raise AssertionError(f"{what}\n{result}")


def matches(pattern, text):
    return re.search(pattern, text) is not None


def main(tests):
    """Runs the tests; those named on the command line, if any are."""
    wanted = sys.argv[4:]
    for test in tests:
        if wanted and test.__name__ not in wanted:
            continue
        begin = time.monotonic()
        try:
            test()
            print(f"ok      {test.__name__}, {time.monotonic() - begin:.1f} s", flush=True)
        except Exception as error:  # pylint: disable=broad-except  # whatever it is, the other tests run
            failures.append(test.__name__)
            print(f"FAILED  {test.__name__}: {type(error).__name__}: {error}", flush=True)
    sys.exit(1 if failures else 0)
