#!/usr/bin/env python3
"""Two hosts, which are network namespaces: skipped without root and `ip`. Usage: hosts_test.py MEZZO_RUN RANK_PROGRAM GLOO_MODULE [TEST...]

The environment's BENCH_DDP is the program of tools/bench_ddp.cpp; without it nothing is said of the bytes on the wire.
"""
import pathlib
import time

from hosts import A, ADDRESS, B, BENCH, bench, hosts, launch, running, sent, start, wire_is
from runs import PROGRAM, Run, expect, main, note_end, torchrun_variables, wait_until_begun

MLP_BYTES = 7.455  # million, of all gradients


def launchers(scenario, **variables):
    """Two ranks on each host."""
    return lambda folder: [launch(host, node, 2, 2, PROGRAM, scenario, folder, port=29500, **variables) for node, host in ((1, B), (0, A))]


def finished(processes, folder):
    begin = time.monotonic()
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    return Run([process.returncode for process in processes], "".join(outputs), time.monotonic() - begin, folder)


def expect_collectives(processes, folder):
    result = finished(processes, folder)
    expect(result.code == [0] * len(processes), result)
    expect(all(result.last(rank).startswith(f"ok {rank} of 4") for rank in range(4)), result)


def two_launchers():
    with running(launchers("collectives")) as (processes, folder):
        expect_collectives(processes, folder)


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
        expect_collectives(processes, folder)


def lose_a_host():
    """Its connection goes without a word. What each side is told; the seconds until it was, for the side of rank 0 and the other."""
    with running(launchers("stop_when_asked", TEST_TIMEOUT=90)) as (processes, folder):
        wait_until_begun(pathlib.Path(folder), 4)
        time.sleep(1)
        note_end(folder)
        wire_is("down")
        try:
            result = finished(processes, folder)
        finally:
            wire_is("up")
    expect(result.code == [1, 1], result)
    expect("is gone; it " in result.last(0) and result.last(0) == result.last(1), result)
    expect(result.last(2).startswith("the store is gone: it was held by mezzo-run") and result.last(2) == result.last(3), result)
    return [result.delay(side) for side in ((0, 1), (2, 3))]


def a_host_is_lost():
    """20 s after its last sign: a pause of a few seconds is no loss."""
    seen = []
    while not seen or max(seen[-1]) > 25:
        expect(len(seen) < 3, seen, "seconds until both sides knew; 25 are the limit")
        seen.append(lose_a_host())
        expect(min(seen[-1]) > 15, seen)
    print(f"known after {seen[-1][0]:.1f} and {seen[-1][1]:.1f} s")


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


with hosts():
    main([two_launchers, a_host_that_knows_itself_as_loopback, each_gradient_is_sent_once, a_host_is_lost])
