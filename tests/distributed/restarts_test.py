#!/usr/bin/env python3
"""mezzo-run --restarts. Usage: restarts_test.py MEZZO_RUN RANK_PROGRAM GLOO_MODULE [TEST...]"""
import signal
import subprocess
import tempfile

import gates
from checkpoints import KILLED, Training
from runs import PROGRAM, RUN, environment, expect, expect_none_left, free_port, main

KILLS_TWICE = "1:7:after:0,0:12:write:900"


def begun(result, rank):
    return [int(line.removeprefix("begun at step ")) for line in result.ranks[str(rank)] if line.startswith("begun")]


def two_ranks_are_killed_one_after_the_other():
    """The run ends as if nothing had happened."""
    with tempfile.TemporaryDirectory(prefix="mezzo_restarts_") as folder:
        end = Training(folder, "whole").start_to_end()
        training = Training(folder, "killed")
        result = training.start(kills=KILLS_TWICE, options=("--restarts", "3"))
        expect(result.code == 0 and training.result.read_bytes() == end, result, "the bits of the uninterrupted run")
        for rank in (0, 1):
            expect(begun(result, rank) == [0, 6, 10], result)
        for line in ("rank 1 of 2 ended with signal 9 (Killed)", "mezzo-run: starts all ranks again: restart 1 of 3\n",
                     "rank 0 of 2 ended with signal 9 (Killed)", "mezzo-run: starts all ranks again: restart 2 of 3\n"):
            expect(result.output.count(line) == 1, result, line)
        expect("restart 3" not in result.output, result)


def restarts_are_used_up():
    with tempfile.TemporaryDirectory(prefix="mezzo_restarts_") as folder:
        training = Training(folder, "killed")
        result = training.start(kills=KILLS_TWICE, options=("--restarts", "1"))
        expect(result.code == KILLED and not training.result.exists(), result)
        expect("mezzo-run: restart 1 of 1 has failed, too; none is left\n" in result.output, result)
        expect(begun(result, 0) == begun(result, 1) == [0, 6] and training.saved_step() == 10, result)
        result = training.start(kills="1:11:after:0")
        expect(result.code != 0 and "restart" not in result.output, result, "none is asked for")


def each_start_has_its_count_and_another_name():
    code = 'echo "$MEZZO_RESTART_COUNT $MEZZO_RUN_ID $MEZZO_RENDEZVOUS"; exit $((MEZZO_RESTART_COUNT == 2 ? 0 : 3))'
    result = subprocess.run([RUN, "-n", "2", "--no-prefix", "--restarts", "5", "sh", "-c", code], env=environment(MEZZO_RESTART_COUNT=9), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)
    lines = sorted(set(result.stdout.strip().split("\n")))
    expect(result.returncode == 0 and [line.split()[0] for line in lines] == ["0", "1", "2"], result)
    expect(len({line.split()[1] for line in lines}) == 3, result, "a name for each start")
    result = subprocess.run([RUN, "-n", "1", "--restarts", "2", "sh", "-c", "exit 4"], env=environment(), text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, timeout=60, check=False)
    expect(result.returncode == 4 and result.stderr.count("rank 0 of 1 ended with exit code 4") == 3, result, "one rank is started again, too")
    for wrong in ("-1", "many"):
        code = subprocess.run([RUN, "-n", "1", "--restarts", wrong, "true"], env=environment(), capture_output=True, timeout=60, check=False).returncode
        expect(code == 2, wrong)


def an_end_by_request_is_no_failure():
    """SIGTERM for all ranks, for one of them that it ends, and for one that ends all in order."""
    with subprocess.Popen([RUN, "-n", "2", "--restarts", "3", "sleep", "61"], env=environment(), text=True, stderr=subprocess.PIPE) as process:
        try:
            gates.wait_until(lambda: len(gates.children_of(process)) == 2, "two ranks")
            gates.signal_all(process)
            words = process.communicate(timeout=60)[1]
        except BaseException:
            process.kill()
            raise
    expect(process.returncode == 128 + signal.SIGTERM and "restart" not in words, words, "all of them")
    for end in ("kill -TERM $$", "kill -HUP $$", "exit 130"):
        result = subprocess.run([RUN, "-n", "2", "--restarts", "3", "--grace", "1", "sh", "-c", f"if [ $RANK = 1 ]; then {end}; fi; sleep 60"],
                                env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)
        expect(result.returncode in (129, 130, 143) and "restart" not in result.stderr, result, end)


def two_nodes():
    """Each launcher starts its own ranks again, and they find each other."""
    with tempfile.TemporaryDirectory(prefix="mezzo_restarts_") as folder, tempfile.TemporaryDirectory(prefix="mezzo_group_") as outcomes:
        end = Training(folder, "whole").start_to_end(ranks=4)
        training = Training(folder, "killed")
        address = f"127.0.0.1:{free_port()}"
        variables = environment(TEST_KILLS="3:7:after:0", TEST_CHECKPOINT=training.checkpoint, TEST_RESULT=training.result, **training.variables)
        launchers = [subprocess.Popen([RUN, "-n", "2", "--nodes", "2", "--node", str(node), "--master", address, "--restarts", "2", PROGRAM,
                                       "train_and_save", outcomes], env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                     for node in (1, 0)]
        try:
            outputs = [launcher.communicate(timeout=100)[0] for launcher in launchers]
        finally:
            for launcher in launchers:
                launcher.kill()
                launcher.wait()
            expect_none_left(outcomes)
        expect([launcher.returncode for launcher in launchers] == [0, 0], outputs)
        expect(all("restart 1 of 2" in output and "restart 2 of 2" not in output for output in outputs), outputs)
        expect(training.result.read_bytes() == end, outputs, "the bits of the uninterrupted run")


main([two_ranks_are_killed_one_after_the_other, restarts_are_used_up, each_start_has_its_count_and_another_name, an_end_by_request_is_no_failure,
      two_nodes])
