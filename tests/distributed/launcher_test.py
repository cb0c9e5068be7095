#!/usr/bin/env python3
"""mezzo-run itself: output, exit codes, variables, several nodes. Usage: launcher_test.py MEZZO_RUN RANK_PROGRAM GLOO_MODULE [TEST...]"""
import os
import signal
import socket
import subprocess
import tempfile
import time

from runs import PROGRAM, RUN, environment, expect, expect_none_left, free_port, main, run

def launch(*arguments, limit=100, **variables):
    return subprocess.run([RUN, *arguments], env=environment(**variables), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=limit, check=False)


def output_has_the_rank_in_front():
    result = launch("-n", "2", "sh", "-c", "echo one; printf two; echo three >&2")
    expect(result.returncode == 0, result)
    expect(sorted(result.stdout.split("\n")) == ["", "[0] one", "[0] two", "[1] one", "[1] two"], result)
    expect(sorted(result.stderr.split("\n")) == ["", "[0] three", "[1] three"], result)
    result = launch("-n", "1", "--no-prefix", "sh", "-c", "echo -n $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $1", "--", "--x")
    expect(result.stdout == "0 of 1, 0 of 1, --x\n", result)


def much_output_arrives():
    result = launch("-n", "2", "sh", "-c", "seq 100000; head -c 200000 /dev/zero | tr '\\0' x")
    for rank in (0, 1):
        lines = [line[4:] for line in result.stdout.split("\n") if line.startswith(f"[{rank}] ")]
        expect(lines[:100000] == [str(i) for i in range(1, 100001)], f"{len(lines)} lines", "no line is lost or cut")
        expect("".join(lines[100000:]) == "x" * 200000, f"{len(lines)} lines", "a long line is cut, and whole")


def a_full_pipe_that_does_not_block_is_waited_for():
    """Whoever shares the output may have made it non-blocking."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    process = subprocess.Popen([RUN, "-n", "2", "seq", "100000"], env=environment(), stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)
    time.sleep(0.5)
    with os.fdopen(reader) as output:
        lines = output.read().split("\n")
    expect(process.wait(100) == 0 and len(lines) == 200001, f"{len(lines)} lines")


def exit_code_is_that_of_the_first_failure():
    result = launch("-n", "3", "sh", "-c", 'if [ "$RANK" = 1 ]; then exit 7; fi; sleep 0.5; exit 0')
    expect(result.returncode == 7 and "mezzo-run: rank 1 of 3 ended with exit code 7\n" in result.stderr, result)
    result = launch("-n", "2", "sh", "-c", "kill -ABRT $$")
    expect(result.returncode == 134 and "ended with signal 6 (Aborted)" in result.stderr, result)
    expect(launch("-n", "2", "true").stderr == "", "nothing to say")


def what_cannot_be_started():
    result = launch("-n", "2", "/no/such/program")
    expect(result.returncode == 1 and "/no/such/program: cannot be started: No such file or directory" in result.stderr, result)
    for arguments in (["true"], ["-n", "0", "true"], ["-n", "2"], ["-n", "2", "--unknown", "true"], ["-n", "1", "--grace", "-1", "true"]):
        expect(launch(*arguments).returncode == 2, arguments, "a wrong command line")
    expect("--master" in launch("-n", "1", "--nodes", "2", "true").stderr, "no master")
    expect("is not host:port" in launch("-n", "2", "--nodes", "2", "--master", "here", "true").stderr, "no port")


def a_parent_may_ignore_the_ends_of_its_children():
    """As some supervisors do, whose children inherit it."""
    result = subprocess.run([RUN, "-n", "2", "sh", "-c", "exit $((RANK * 3))"], env=environment(), text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, timeout=60, check=False, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    expect(result.returncode == 3, result)


def the_rest_is_killed_after_the_grace():
    result = run("ignore_failures", 3, options=("--grace", "1"))
    expect(result.code == 5 and 1 < result.seconds < 20, result)
    expect("rank 1 of 3 ended with exit code 5" in result.output, result)


def grandchildren_do_not_keep_it():
    begin = time.monotonic()
    result = launch("-n", "2", "--grace", "1", "sh", "-c", "sleep 90 & if [ $RANK = 0 ]; then exit 4; fi; sleep 90")
    expect(result.returncode == 4 and time.monotonic() - begin < 60, result)


def grandchildren_are_not_left_behind():
    """Whether their ranks have ended well or not, and before the others or with them."""
    for code, rest in ((0, "exit 0"), (4, "if [ $RANK = 0 ]; then exit 4; fi"), (4, "if [ $RANK = 0 ]; then exit 4; fi; sleep 90")):
        with tempfile.TemporaryDirectory(prefix="mezzo_group_") as folder:
            result = launch("-n", "2", "--grace", "1", "sh", "-c", f"echo begun > {folder}/$RANK; tail -f {folder}/$RANK > /dev/null 2>&1 & {rest}")
            expect(result.returncode == code and sorted(os.listdir(folder)) == ["0", "1"], result)
            expect_none_left(folder, seconds=20)


def two_nodes():
    """Two launchers on one machine."""
    with tempfile.TemporaryDirectory(prefix="mezzo_group_") as folder:
        address = f"127.0.0.1:{free_port()}"
        launchers = [subprocess.Popen([RUN, "-n", "2", "--nodes", "2", "--node", str(node), "--master", address, PROGRAM, "collectives", folder],
                                      env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for node in (1, 0)]
        outputs = [launcher.communicate(timeout=60)[0] for launcher in launchers]
        expect([launcher.returncode for launcher in launchers] == [0, 0], outputs)
        for rank in range(4):
            with open(f"{folder}/{rank}", encoding="utf-8") as file:
                expect(file.read().startswith(f"ok {rank} of 4"), outputs)
        expect_none_left(folder)


def threads_are_shared_out():
    processors = len(os.sched_getaffinity(0))
    for ranks in (1, 2, 4):
        result = run("threads", ranks)
        expected = processors if ranks == 1 else max(1, processors // ranks)
        expect(all(result.last(rank) == f"threads {expected}" for rank in range(ranks)), result)
    result = run("threads", 2, MEZZO_THREADS=3)
    expect(result.last(0) == result.last(1) == "threads 3", result)
    result = run("threads", 1, MEZZO_THREADS=5)
    expect(result.last(0) == "threads 5", result)
    result = run("threads", 1, MEZZO_THREADS="many")
    expect(result.last(0) == "init: MEZZO_THREADS=many; it must be a whole number from 1 to 1024", result)


def a_port_that_is_taken():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        result = launch("-n", "1", "--nodes", "2", "--node", "0", "--master", f"127.0.0.1:{port}", "echo", "started")
    expect(result.returncode == 1 and result.stdout == "", result)
    expect(result.stderr == f"mezzo-run: --master: port {port} is in use, or not ours to use\n", result)


main([output_has_the_rank_in_front, much_output_arrives, a_full_pipe_that_does_not_block_is_waited_for, exit_code_is_that_of_the_first_failure, what_cannot_be_started,
      a_parent_may_ignore_the_ends_of_its_children, the_rest_is_killed_after_the_grace, grandchildren_do_not_keep_it, grandchildren_are_not_left_behind, a_port_that_is_taken, two_nodes, threads_are_shared_out])
