#!/usr/bin/env python3
"""Steps of two ranks whose hosts are joined by a slow wire take hardly longer than what they have to wait for: the longer of computing and the wire, or, without
overlap, both. Of a BERT's computing overlap also hides a part. A benchmark (meson test --benchmark) for an idle machine: with each 256 KB that it exchanges a step waits for a
processor anew. Skipped without root, `ip` and `tc`.
Usage: slow_wire_test.py MEZZO_RUN RANK_PROGRAM GLOO_MODULE [TEST...]; the environment's BENCH_DDP is the program of tools/bench_ddp.cpp.

What the machine itself takes is measured beside the steps, so that the limit says nothing about its speed:
- computing: the longer step of two programs that are alone, at the same time, as ranks share processors;
- the wire: what TCP takes for the same bytes (its headers are 4 %), and never less than bytes / rate.
Of each the least of all attempts counts, as it does of the step.

The wire is slow by the kernel's clock, whatever runs. Its burst of 64 KB is 1 % of a step, and TCP's window is what the step before has left, for the exchange as for TCP by
itself. So what remains is the forward pass, in which there is nothing to send yet, and the exchange's own messages. For the first to be short on a slow machine, too, a BERT has
as many rows as make its computing an eighth of the wire's time.
"""
import os
import pathlib
import subprocess
import sys

from hosts import A, ADDRESS, B, BENCH, WIRES, bench, bench_apart, hosts, running, start
from runs import expect, main

MEGABITS = 200
LIMIT = 1.15
HIDDEN = 0.25  # of the computing, by overlap; backward is two thirds of it
ATTEMPTS = 3
TCP = str(pathlib.Path(__file__).with_name("tcp_exchange.py"))


def limit_wire():
    """In each direction; False where the kernel has no such limit."""
    commands = [["tc", "-n", host, "qdisc", "replace", "dev", wire, "root", "tbf", "rate", f"{MEGABITS}mbit", "burst", "64kb", "latency", "50ms"]
                for host, wire in WIRES.items()]
    return all(subprocess.run(command, check=False).returncode == 0 for command in commands)


def bytes_alone(size):
    """Milliseconds, were they all that goes over the wire."""
    return size * 8 / MEGABITS / 1e3


def tcp(size, steps):
    """Milliseconds of a step's bytes."""
    def make(_):
        return [start(host, [sys.executable, TCP, role, ADDRESS, "29800", str(size), str(steps)]) for host, role in ((A, "listen"), (B, "connect"))]

    with running(make) as (processes, _):
        outputs = [process.communicate(timeout=120)[0] for process in processes]
        expect(all(process.returncode == 0 for process in processes), outputs)
        return max(map(float, outputs))


class Times:
    """The best so far of each, in milliseconds."""

    def __init__(self, size, steps, options, least_hidden):
        self.size, self.steps, self.options = size, steps, [*options, "--steps", str(steps), "--warmup", "2"]
        self.least_hidden = least_hidden
        self.best = {}

    def measure(self):
        for name, seen in (("computing", bench_apart(*self.options)), ("tcp", tcp(self.size, self.steps)), ("overlap", bench(*self.options, "--overlap")),
                           ("no overlap", bench(*self.options, "--no-overlap"))):
            self.best[name] = min(self.best.get(name, seen), seen)

    def ratios(self, wire):
        computing = self.best["computing"]
        return {"overlap": self.best["overlap"] / max(computing, wire), "no overlap": self.best["no overlap"] / (computing + wire)}

    def to_tcp(self):
        return self.ratios(max(self.best["tcp"], bytes_alone(self.size)))

    def hidden(self):
        """The part of the computing by which overlap makes a step shorter."""
        return (self.best["no overlap"] - self.best["overlap"]) / self.best["computing"]

    def good(self):
        return max(self.to_tcp().values()) < LIMIT and (self.least_hidden is None or self.hidden() > self.least_hidden)

    def __str__(self):
        to_tcp, to_bytes = self.to_tcp(), self.ratios(bytes_alone(self.size))
        steps = ", ".join(f"{name} {self.best[name]:.0f} ms = {ratio:.3f} (of the bytes alone {to_bytes[name]:.3f})" for name, ratio in to_tcp.items())
        hidden = "" if self.least_hidden is None else f"; {self.hidden():.2f} of the computing hidden"
        return f"computing {self.best['computing']:.0f} ms, bytes {bytes_alone(self.size):.0f} ms, TCP {self.best['tcp']:.0f} ms; {steps}{hidden}"


def expect_in_time(size, steps, *options, least_hidden=None):
    times = Times(size, steps, options, least_hidden)
    for _ in range(ATTEMPTS):
        times.measure()
        if times.good():
            break
    print(f"{' '.join(options)}: {times}", flush=True)
    expect(times.good(), f"less than {LIMIT}" + (f", {least_hidden} hidden" if least_hidden else ""))


def an_mlp():
    expect_in_time(7_454_760, 8, "--model", "mlp", "--rows", "64")


def a_bert():
    size = 21_621_768
    of_a_row = min(bench_apart("--model", "bert", "--rows", "8", "--steps", "4", "--warmup", "2") for _ in range(3)) / 8
    rows = min(64, max(1, round(bytes_alone(size) / 8 / of_a_row)))
    expect_in_time(size, 4, "--model", "bert", "--rows", str(rows), least_hidden=HIDDEN)


with hosts():
    if not BENCH or not limit_wire():
        print("no bench_ddp, or no limit for a wire here: skipped")
        sys.exit(77)
    main([an_mlp, a_bert])
