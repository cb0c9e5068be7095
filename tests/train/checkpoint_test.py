#!/usr/bin/env python3
"""Kills a training at random moments and resumes it, and lets its calls to the system fail in turn.

    checkpoint_test.py PROGRAM kill [TIMES]     the resumed training must end with the state of the uninterrupted one
    checkpoint_test.py PROGRAM faults LIBRARY   LIBRARY: for LD_PRELOAD
"""
import os
import pathlib
import random
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
TIMES = int(sys.argv[3]) if sys.argv[2:3] == ["kill"] and len(sys.argv) > 3 else 5
STEPS = 120 * TIMES  # enough that all of the kills come before the end, most of the time
LIMIT = 280  # seconds for one process


def start(folder):
    environment = os.environ | {"MEZZO_ISA": "portable", "MEZZO_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([PROGRAM, "train", folder, str(STEPS)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process, limit):
    """Its output, or None where it was still running after so many seconds and has been killed."""
    try:
        out, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
        return None, out
    assert process.returncode == 0, f"exit code {process.returncode}: {errors}"
    return out, out


def digest(out):
    return out.split("done ")[1].split()[0]


def kill(times):
    with tempfile.TemporaryDirectory() as folder:
        whole, _ = finished(start(f"{folder}/whole"), LIMIT)
        expected = digest(whole)
        seed = random.randrange(1 << 30)
        moments = random.Random(seed)
        killed, ended, longest, steps = 0, 0, 0.4, []
        while killed < times:
            out, seen = finished(start(f"{folder}/killed-{ended}"), moments.uniform(0, longest))
            if out is None:
                killed += 1
                steps += [int(seen.split()[1])] if "from" in seen else []
            else:
                assert digest(out) == expected, f"another state after {killed} kills; seed {seed}"
                ended += 1  # it came to its end before its time: the next run begins anew
        out, _ = finished(start(f"{folder}/killed-{ended}"), LIMIT)
        assert digest(out) == expected, f"another state at the end; seed {seed}"
        left = sorted(path.name for path in pathlib.Path(f"{folder}/killed-{ended}").iterdir())
        assert left == [f"step-{STEPS - 2:010}.ckpt", f"step-{STEPS:010}.ckpt"], left
    print(f"killed {killed} times, {ended + 1} runs, resumed at steps {steps}: the state of the uninterrupted run, {expected}")


def faults(library):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([PROGRAM, "faults", f"{folder}/run"], env=os.environ | {"LD_PRELOAD": library}, timeout=LIMIT, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        print(done.stdout, done.stderr)
        assert done.returncode == 0, f"exit code {done.returncode}"


if sys.argv[2] == "kill":
    kill(TIMES)
else:
    faults(sys.argv[3])
