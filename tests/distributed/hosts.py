"""Two network namespaces as two hosts, A and B, joined by a wire. They need root and `ip`."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from runs import RUN, environment, expect, expect_none_left

BENCH = os.environ.get("BENCH_DDP")  # the program of tools/bench_ddp.cpp
A, B = f"mezzo{os.getpid()}a", f"mezzo{os.getpid()}b"
WIRES = {A: f"va{os.getpid() % 100000}", B: f"vb{os.getpid() % 100000}"}  # each host's end
ADDRESS = "192.168.77.1"  # of A


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False).returncode == 0


def wire_is(state):
    """"up" or "down", as B sees it."""
    expect(ip("-n", B, "link", "set", WIRES[B], state), f"ip link set {state}")


def sent():
    """Bytes that each host has sent to the other."""
    return [int(subprocess.run(["ip", "netns", "exec", host, "cat", f"/sys/class/net/{wire}/statistics/tx_bytes"], capture_output=True, text=True,
                               check=True).stdout) for host, wire in WIRES.items()]


def make():
    return all([ip("netns", "add", A), ip("netns", "add", B), ip("link", "add", WIRES[A], "netns", A, "type", "veth", "peer", "name", WIRES[B], "netns", B),
                ip("-n", A, "addr", "add", ADDRESS + "/24", "dev", WIRES[A]), ip("-n", B, "addr", "add", "192.168.77.2/24", "dev", WIRES[B]),
                *(ip("-n", host, "link", "set", device, "up") for host in (A, B) for device in (WIRES[host], "lo"))])


def remove_orphans():
    """What tests have left that were killed: those whose process, which has named them, is gone."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for name, process in re.findall(r"^(mezzo(\d+)[a-z]+)\b", listed, re.M):
        if not pathlib.Path(f"/proc/{process}").exists():
            ip("netns", "del", name)


@contextlib.contextmanager
def hosts():
    """Both hosts; ends the program with the code of a test that is skipped where there can be none."""
    if os.geteuid() != 0 or not shutil.which("ip") or not ip("netns", "add", A + "try"):
        print("no network namespaces here, so nothing of several hosts was tested: skipped")
        sys.exit(77)
    ip("netns", "del", A + "try")
    remove_orphans()
    try:
        expect(make(), "the namespaces cannot be made")
        yield
    finally:
        ip("netns", "del", A)
        ip("netns", "del", B)


def start(host, command, **variables):
    return subprocess.Popen(["ip", "netns", "exec", host, *command], env=environment(**variables), text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


@contextlib.contextmanager
def running(make_processes):
    """The processes that make_processes(folder) starts, and the folder."""
    with tempfile.TemporaryDirectory(prefix="mezzo_group_") as folder:
        processes = make_processes(folder)
        try:
            yield processes, folder
        finally:
            for process in processes:
                process.kill()
                process.wait()
            expect_none_left(folder)


def launch(host, node, nodes, ranks, *command, port, master=ADDRESS, **variables):
    """mezzo-run on a host."""
    return start(host, [RUN, "-n", str(ranks), "--nodes", str(nodes), "--node", str(node), "--master", f"{master}:{port}", "--no-prefix", *command],
                 **variables)


def milliseconds(processes):
    """Of a step of bench_ddp, the median, as the ranks 0 of the processes say."""
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    expect(all(process.returncode == 0 for process in processes), outputs)
    return [json.loads(line)["clock_ms"] for output in outputs for line in output.split("\n") if line.startswith("{")]


def bench(*options):
    """A step with a rank on each host."""
    with running(lambda _: [launch(host, node, 2, 1, BENCH, *options, port=29700) for node, host in ((1, B), (0, A))]) as (processes, _):
        return milliseconds(processes)[0]


def bench_apart(*options):
    """The longer step of two programs that are alone, one on each host, at the same time."""
    with running(lambda _: [start(host, [BENCH, *options]) for host in (A, B)]) as (processes, _):
        return max(milliseconds(processes))
