#!/usr/bin/env python3
"""Two network namespaces as two hosts. It needs root and `ip`, and is skipped without them. Usage: hosts_test.py MEZZO_RUN RANK_PROGRAM GLOO_MODULE [TEST...]

The environment's BENCH_DDP is the program of tools/bench_ddp.cpp; without it nothing is said of the bytes on the wire.
"""
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import runs
from runs import PROGRAM, RUN, environment, expect, expect_none_left, main, torchrun_variables, wait_until_begun

BENCH = os.environ.get("BENCH_DDP")
A, B = f"mezzo{os.getpid()}a", f"mezzo{os.getpid()}b"
ADDRESS = "192.168.77.1"  # of A


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False).returncode == 0


def make_hosts():
    near, far = f"va{os.getpid() % 100000}", f"vb{os.getpid() % 100000}"
    return all([ip("netns", "add", A), ip("netns", "add", B), ip("link", "add", near, "netns", A, "type", "veth", "peer", "name", far, "netns", B),
                ip("-n", A, "addr", "add", ADDRESS + "/24", "dev", near), ip("-n", B, "addr", "add", "192.168.77.2/24", "dev", far),
                ip("-n", A, "link", "set", near, "up"), ip("-n", B, "link", "set", far, "up"),
                ip("-n", A, "link", "set", "lo", "up"), ip("-n", B, "link", "set", "lo", "up")])


def start(host, command, **variables):
    return subprocess.Popen(["ip", "netns", "exec", host, *command], env=environment(**variables), text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


@contextlib.contextmanager
def running(make):
    """The processes that make(folder) starts, and the folder."""
    with tempfile.TemporaryDirectory(prefix="mezzo_group_") as folder:
        processes = make(folder)
        try:
            yield processes, folder
        finally:
            for process in processes:
                process.kill()
                process.wait()
            expect_none_left(folder)


def launchers(scenario, **variables):
    def make(folder):
        return [start(host, [RUN, "-n", "2", "--nodes", "2", "--node", str(node), "--master", ADDRESS + ":29500", PROGRAM, scenario, folder],
                      **variables) for node, host in ((1, B), (0, A))]
    return make


def outcome(folder, rank):
    with open(f"{folder}/{rank}", encoding="utf-8") as file:
        return file.read().strip().split("\n")[-1]


def two_launchers():
    with running(launchers("collectives")) as (processes, folder):
        outputs = [p.communicate(timeout=60)[0] for p in processes]
        expect([p.returncode for p in processes] == [0, 0], outputs)
        expect(all(outcome(folder, r).startswith(f"ok {r} of 4") for r in range(4)), outputs)


def a_host_that_knows_itself_as_loopback():
    """As Debian's hosts do: its ranks reach the store at 127.0.0.1, which is no address for the others."""
    def make(folder):
        started = []
        for rank in range(4):
            host, address = (A, "127.0.0.1") if rank < 2 else (B, ADDRESS)
            variables = torchrun_variables(rank, 4, 29600, LOCAL_RANK=rank % 2, LOCAL_WORLD_SIZE=2, MASTER_ADDR=address)
            started.append(start(host, [PROGRAM, "collectives", folder], **variables))
        return started

    with running(make) as (processes, folder):
        outputs = [p.communicate(timeout=60)[0] for p in processes]
        expect([p.returncode for p in processes] == [0] * 4, outputs)


def a_host_is_lost():
    """Its connection goes without a word. The others know after 20 s."""
    with running(launchers("stop_when_asked", TEST_TIMEOUT=90)) as (processes, folder):
        wait_until_begun(runs.pathlib.Path(folder), 4)
        time.sleep(1)
        begin = time.monotonic()
        expect(ip("-n", B, "link", "set", f"vb{os.getpid() % 100000}", "down"), "ip")
        outputs = [p.communicate(timeout=60)[0] for p in processes]
        expect(15 < time.monotonic() - begin < 60, f"{time.monotonic() - begin:.1f} s")
        expect([p.returncode for p in processes] == [1, 1], outputs)
        expect("is gone; it was last seen" in outcome(folder, 0) and outcome(folder, 0) == outcome(folder, 1), outputs)
        expect(outcome(folder, 2).startswith("the store is gone: it was held by mezzo-run"), outputs)


def bench(*options, nodes=("0", "1")):
    """bench_ddp with a rank on each host: milliseconds of a step, the median."""
    def make(_):
        return [start(host, [RUN, "-n", "1", "--nodes", str(len(nodes)), "--node", node, "--master", ADDRESS + ":29700", "--no-prefix", BENCH, *options])
                for node, host in reversed(list(zip(nodes, (A, B))))]

    with running(make) as (processes, _):
        outputs = [p.communicate(timeout=120)[0] for p in processes]
        expect(all(p.returncode == 0 for p in processes), outputs)
        return json.loads(next(line for line in outputs[-1].split("\n") if line.startswith("{")))["clock_ms"]


def limit_wire(megabits):
    """To so many million bits per second in each direction."""
    for host, wire in ((A, f"va{os.getpid() % 100000}"), (B, f"vb{os.getpid() % 100000}")):
        command = ["tc", "-n", host, "qdisc", "replace", "dev", wire, "root", "tbf", "rate", f"{megabits}mbit", "burst", "64kb", "latency", "50ms"]
        expect(subprocess.run(command, check=False).returncode == 0, command)


def slow_wire(title, megabytes, *options):
    """A step against what it has to wait for: the longer of computing and the wire, or, without overlap, both."""
    computing = bench(*options, nodes=("0",))
    wire = megabytes * 8e3 / MEGABITS
    print(f"{title}: computing {computing:.0f} ms, wire {wire:.0f} ms", end="", flush=True)
    for overlap, floor in (("--overlap", max(computing, wire)), ("--no-overlap", computing + wire)):
        step = bench(*options, overlap)
        for _ in range(4):  # a machine with other work says little about the wire
            if step > 1.15 * floor:
                step = min(step, bench(*options, overlap))
        print(f", {overlap[2:]} {step:.0f} ms = {step / floor:.2f} of the floor", end="", flush=True)
        expect(step < 1.15 * floor, f"{step:.0f} ms, at least {floor:.0f} ms")
    print()


MEGABITS = 200
MLP_BYTES, BERT_BYTES = 7.455, 21.93  # million, of all gradients


def sent():
    """Bytes that each host has sent to the other."""
    return [int(subprocess.run(["ip", "netns", "exec", host, "cat", f"/sys/class/net/{wire}/statistics/tx_bytes"], capture_output=True, text=True,
                               check=True).stdout) for host, wire in ((A, f"va{os.getpid() % 100000}"), (B, f"vb{os.getpid() % 100000}"))]


def each_gradient_is_sent_once():
    """Of two ranks each sends as many bytes in a step as it has gradients: half of the sums to be, and half of the sums."""
    if not BENCH:
        print("no bench_ddp: skipped")
        return
    counts = [sent()]
    for steps in (5, 25):
        bench("--model", "mlp", "--rows", "64", "--steps", str(steps))
        counts.append(sent())
    steps = [(third - 2 * second + first) / 20 / 1e6 for first, second, third in zip(*counts)]  # what a run begins with is not in it
    print(f"MLP: {steps[0]:.2f} and {steps[1]:.2f} MB a step, gradients of {MLP_BYTES:.2f} MB")
    expect(all(MLP_BYTES < step < 1.15 * MLP_BYTES for step in steps), steps)


def a_slow_wire():
    """On request: it says something on an idle machine alone."""
    limit_wire(MEGABITS)
    slow_wire("MLP, 64 rows", MLP_BYTES, "--model", "mlp", "--rows", "64", "--steps", "10")
    for rows in (8, 32, 64):
        slow_wire(f"BERT, {rows} rows", BERT_BYTES, "--model", "bert", "--rows", str(rows), "--steps", "4")


if os.geteuid() != 0 or not shutil.which("ip") or not ip("netns", "add", A + "try"):
    print("no network namespaces here: skipped")
    sys.exit(77)
ip("netns", "del", A + "try")
try:
    expect(make_hosts(), "the namespaces cannot be made")
    on_request = [test for test in [a_slow_wire] if test.__name__ in sys.argv]
    main([two_launchers, a_host_that_knows_itself_as_loopback, each_gradient_is_sent_once, *on_request, a_host_is_lost])
finally:
    ip("netns", "del", A)
    ip("netns", "del", B)
