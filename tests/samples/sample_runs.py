"""Runs of the sample that the first argument of a test names, for bert_sample_test.py, gpt_sample_test.py and resnet_sample_test.py."""
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("support", "distributed")]
import gates  # noqa: E402
from checks import check, finish  # noqa: E402,F401

PROGRAM = sys.argv[1]


def run(*arguments, expect=0):
    """Runs the sample to its end and checks its exit code."""
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, errors="replace",
                            stdin=subprocess.DEVNULL, timeout=300)
    check(result.returncode == expect, f"{' '.join(map(str, arguments))}: exit code {result.returncode}, not {expect}\n"
                                       f"{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return result


def without(arguments, option):
    """A command line without an option and its value."""
    at = arguments.index(option) if option in arguments else len(arguments)
    return arguments[:at] + arguments[at + 2:]


def kill_and_resume(arguments, checkpoint, longest_wait, folder=None):
    """Kills a training with --resume up to five times and lets it end: first while it waits to write its first checkpoint, before
    which it cannot end, then up to `longest_wait` seconds after a checkpoint. Returns the number of kills. `folder` has all
    checkpoints, if there are others than `checkpoint`, the first."""
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    command, generator, kills = [PROGRAM, *map(str, arguments)], random.Random(3), 1
    with gates.writing_is_held(checkpoint), subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        check(gates.await_writer(process, checkpoint), "no checkpoint is written")
        process.kill()
        check(process.wait() == -9, f"killed while it saves: exit code {process.returncode}")
    for attempt in range(5):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            killed = attempt < 4 and kill_after_checkpoint(process, folder or checkpoint, generator.uniform(0, longest_wait))
            error = process.communicate()[1]
        if not killed:
            check(process.returncode == 0, f"resuming: {error}")
            break
        kills += 1
    return kills


def interrupt(checkpoint, number, *arguments):
    """Sends a signal to a training while it waits to write this checkpoint, checks the exit code, and returns the output."""
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    with gates.writing_is_held(checkpoint) as gate, subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE,
                                                                     stderr=subprocess.DEVNULL, text=True) as process:
        check(gates.await_writer(process, checkpoint), "no checkpoint is written")
        process.send_signal(number)
        gate.close()
        output = process.communicate(timeout=300)[0]
    check(process.returncode == 128 + number, f"signal {number}: exit code {process.returncode}\n{output}")
    return output


def kill_after_checkpoint(process, checkpoint, wait):
    """Kills the process `wait` seconds after it has written a checkpoint: a file, or one of a folder. False if it ended before, as it
    may if this process gets no processor for long."""
    def written():
        if not checkpoint.is_dir():
            return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        return sorted(path.name for path in checkpoint.rglob("*.ckpt"))
    before = written()
    while written() == before:
        if process.poll() is not None:
            return False
        time.sleep(0.001)
    time.sleep(wait)
    process.kill()
    return process.wait() == -9


def run_parts(parts, prepare):
    """Calls prepare(data) and then each part(data, out) with two new folders, and prints the time of each part."""
    with tempfile.TemporaryDirectory() as name:
        data, out = pathlib.Path(name) / "data", pathlib.Path(name) / "out"
        data.mkdir()
        out.mkdir()
        prepare(data)
        # A process that finds no cache times anew which kernels multiply; other kernels, other last bits.
        os.environ["MEZZO_CACHE"] = str(pathlib.Path(name) / "cache")
        for part in parts:
            start = time.monotonic()
            part(data, out)
            print(f"{part.__name__}: {time.monotonic() - start:.1f} s")
