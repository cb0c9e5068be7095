#!/usr/bin/env python3
"""What the other ranks get when one fails. Usage: failures_test.py MEZZO_RUN RANK_PROGRAM GLOO_MODULE [TEST...]"""
import os
import signal
import time

from causes import SOON, WITHIN, expect_cause, fails_with, in_time
from runs import expect, free_port, main, matches, note_end, run, start_ranks, torchrun_variables, wait_until_begun


def killed_between_calls():
    result = fails_with("kill", r"^rank 3 \(host \S+, pid \d+\) is gone; it was last seen (in|after) call \d", 128 + signal.SIGKILL)
    expect("mezzo-run: rank 3 of 4 ended with signal 9 (Killed)" in result.output, result, "summary")


def killed_in_a_reduction():
    for _ in range(3):
        fails_with("kill_in_reduction", r"^rank 2 \(host \S+, pid \d+\) is gone; it was last seen in call \d", 128 + signal.SIGKILL, ranks=3)


def killed_in_backward():
    for ranks in (2, 3):
        fails_with("kill_in_backward", rf"^rank {ranks - 1} \(host \S+, pid \d+\) is gone", 128 + signal.SIGKILL, ranks=ranks)


def throws():
    result = fails_with("throw", r"^rank 3: matmul: inner sizes differ, \[2, 3\] and \[4, 5\]$", 1)
    expect(result.last(3) == "matmul: inner sizes differ, [2, 3] and [4, 5]", result)


def throws_what_nobody_catches():
    fails_with("throw_uncaught", r"^rank 3: words of a foreign exception$", 128 + signal.SIGABRT)


def leaves_early():
    pattern = r"^rank 3 left after 3 calls, rank [0-2] waits in call 4: unequal numbers of batches\?$"
    fails_with("leave_early", pattern, 1)
    fails_with("exit_early", pattern, 1)


def crashes_before_joining():
    result = run("crash_before_joining", 3, TEST_RENDEZVOUS_TIMEOUT=60)
    expect(result.code == 3 and result.seconds < SOON, result)
    for rank in (0, 2):
        expect(result.last(rank) == "init: rank 1 ended with exit code 3 before it joined the group", result)


def is_stuck():
    timeout = 2
    late = r"rank 2 \(host \S+, pid \d+\) has not arrived, last seen in call [0-3]"

    def attempt():
        result = run("stop", 3, options=("--grace", "1"), TEST_TIMEOUT=timeout)
        expect(result.code == 1 and result.seconds > timeout, result)
        expect_cause(result, (0, 1), rf"^rank [01]: no answer of the other ranks within {timeout} s: " + late)
        expect(matches(r"mezzo-run: call 4 has waited for \d s: " + late, result.output), result, "a line while they wait")
        return result

    in_time(attempt, (0, 1), timeout + WITHIN)


def is_stuck_without_a_launcher():
    """Then each rank's log has the line."""
    def resume(processes, folder):
        processes[0].wait(SOON)
        processes[1].wait(SOON)
        processes[2].kill()

    port = free_port()
    result = start_ranks("stop", [torchrun_variables(r, 3, port, TEST_TIMEOUT=5, TEST_LOG=1) for r in range(3)], after_start=resume)
    for rank in (0, 1):
        lines = [line for line in result.ranks[str(rank)] if line.startswith("log: distributed: call 4 has waited")]
        expect(len(lines) == 1 and matches(r"rank 2 \(host \S+, pid \d+\) has not arrived", lines[0]), result, "one line while they wait")


def launcher_is_killed():
    def kill(process, folder):
        wait_until_begun(folder, 3)
        note_end(folder)
        process.kill()

    def attempt():
        result = run("stop_when_asked", 3, while_running=kill, TEST_TIMEOUT=60)
        expect_cause(result, range(3), r"^the store is gone: it was held by mezzo-run \(host \S+, pid \d+\)$")
        return result

    in_time(attempt, range(3))


def rank_0_with_the_store_is_killed():
    def kill(processes, folder):
        wait_until_begun(folder, 3)
        note_end(folder)
        processes[0].kill()

    def attempt():
        port = free_port()
        result = start_ranks("stop_when_asked", [torchrun_variables(r, 3, port, TEST_TIMEOUT=60) for r in range(3)], after_start=kill)
        expect_cause(result, (1, 2), r"^the store is gone: it was held by rank 0 \(host \S+, pid \d+\)$")
        return result

    for _ in range(3):  # one of the others may be about to write to it, which must not end that one by SIGPIPE
        in_time(attempt, (1, 2))


def rank_0_with_the_store_throws():
    """Its words arrive before its store closes."""
    port = free_port()
    result = start_ranks("throw_first", [torchrun_variables(r, 3, port, TEST_TIMEOUT=60) for r in range(3)])
    expect_cause(result, (1, 2), r"^rank 0: matmul: inner sizes differ")


def rank_0_with_the_store_leaves_first():
    port = free_port()
    result = start_ranks("leave_after_sending", [torchrun_variables(r, 3, port) for r in range(3)])
    expect(result.code == [0, 0, 0], result)


def rank_0_with_the_store_leaves_early():
    """Its store has closed when the others call."""
    def attempt():
        port = free_port()
        result = start_ranks("leave_first", [torchrun_variables(r, 3, port, TEST_TIMEOUT=60) for r in range(3)])
        expect(result.code == [0, 1, 1], result)
        for rank in (1, 2):
            pattern = rf"^rank 0 left after 3 calls, rank {rank} waits in call 4: unequal numbers of batches\?$"
            expect(matches(pattern, result.last(rank)), result, pattern)
        return result

    in_time(attempt, (1, 2))


def a_rank_is_missing():
    port = free_port()
    result = start_ranks("join", [torchrun_variables(r, 3, port, TEST_RENDEZVOUS_TIMEOUT=6) for r in (0, 2)])
    for rank in (0, 2):
        expect(matches(r"^init: rank [02]: not all ranks have come within 6 s: missing rank 1$", result.last(rank)), result)
    result = start_ranks("join", [torchrun_variables(1, 3, port, TEST_RENDEZVOUS_TIMEOUT=1)])
    expect(matches(r"rank 1 of 3 found no store of this run at 127.0.0.1, port \d+, within 1 s", result.last(1)), result)


def terminated():
    """All stop after the same step, in order."""
    def terminate(process, folder):
        wait_until_begun(folder, 3)
        time.sleep(0.3)
        process.terminate()

    result = run("stop_when_asked", 3, while_running=terminate)
    expect(result.code == 0, result)
    expect_cause(result, range(3), r"^stopped after step \d+$")


def interrupted():
    def interrupt(process, folder):
        wait_until_begun(folder, 2)
        os.kill(process.pid, signal.SIGINT)

    result = run("stop_when_asked", 2, while_running=interrupt)
    expect(result.code == 128 + signal.SIGINT, result)


main([killed_between_calls, killed_in_a_reduction, killed_in_backward, throws, throws_what_nobody_catches, leaves_early, crashes_before_joining, is_stuck,
      is_stuck_without_a_launcher, launcher_is_killed, rank_0_with_the_store_is_killed, rank_0_with_the_store_throws, rank_0_with_the_store_leaves_first,
      rank_0_with_the_store_leaves_early, a_rank_is_missing, terminated, interrupted])
