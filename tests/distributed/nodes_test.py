#!/usr/bin/env python3
"""mezzo-run of several nodes, all on this machine: what all ranks read when a rank or a mezzo-run is lost. Usage: nodes_test.py MEZZO_RUN RANK_PROGRAM
GLOO_MODULE [TEST...]"""
import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import gates
from runs import PROGRAM, RUN, Run, descendants_named, environment, expect, expect_none_left, free_port, main, matches, note_end, wait_until_begun

LIMIT = 100  # s
WITHIN = 1  # s, from the cause to the words of the last rank
ATTEMPTS = 5  # on a machine with other work a rank may get no processor for longer than that


class Nodes:
    """Launchers, of which those in `late` are started by the test. At the end nothing of them is left."""

    def __init__(self, command, folder, port, nodes=2, ranks=2, late=(), options=(), **variables):
        self.command, self.folder, self.port, self.nodes, self.ranks, self.options = command, pathlib.Path(folder), port, nodes, ranks, options
        self.variables = environment(**variables)
        self.launchers, self.outputs = {}, {}
        for node in range(nodes):
            if node not in late:
                self.start(node)

    def start(self, node, *options, ranks=None):
        self.outputs.pop(node, None)
        words = ["-n", str(ranks or self.ranks), "--nodes", str(self.nodes), "--node", str(node), "--master", f"127.0.0.1:{self.port}", *self.options,
                 *options]
        self.launchers[node] = subprocess.Popen([RUN, *words, *self.command], env=self.variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def wait(self, node):
        """The exit code."""
        self.outputs[node] = self.launchers[node].communicate(timeout=LIMIT)[0]
        return self.launchers[node].returncode

    def kill(self, node):
        self.launchers[node].kill()
        self.wait(node)

    def result(self):
        """Once all has ended, which ranks without a launcher do by themselves."""
        codes = [self.wait(node) if node not in self.outputs else self.launchers[node].returncode for node in sorted(self.launchers)]
        expect_none_left(str(self.folder))
        return Run(codes, "".join(self.outputs[node] for node in sorted(self.outputs)), 0, self.folder)


@contextlib.contextmanager
def nodes(scenario, port=None, **arguments):
    with tempfile.TemporaryDirectory(prefix="mezzo_group_") as folder:
        all_nodes = Nodes([PROGRAM, scenario, folder], folder, port or free_port(), **arguments)
        try:
            yield all_nodes
        finally:
            for launcher in all_nodes.launchers.values():
                launcher.terminate()
                launcher.kill()
                launcher.communicate()
            with contextlib.suppress(AssertionError):
                expect_none_left(folder, seconds=0)


def in_time(attempt, ranks):
    """attempt() gives a result in which these ranks had their words soon after the cause."""
    delays = []
    while len(delays) < ATTEMPTS:
        delays.append(attempt().delay(ranks))
        if delays[-1] <= WITHIN:
            return
    raise AssertionError(f"the ranks ended after {delays} s; {WITHIN} s is the limit")


def expect_words(result, ranks, pattern):
    for rank in ranks:
        expect(matches(pattern, result.last(rank)), result, f"rank {rank}: {pattern}")


def expect_joined(result):
    expect(result.code == [0, 0], result)
    expect_words(result, range(len(result.ranks)), rf"^joined \d of {len(result.ranks)}$")
    expect(len(result.ranks) > 1, result)


def a_rank_ends_before_it_joins():
    """On either node: the others know at once, though only node 0 holds a store."""
    for victim, node in ((3, 1), (0, 0)):
        others = [rank for rank in range(4) if rank != victim]

        def attempt():
            with nodes("crash_before_joining", TEST_VICTIM=victim) as run:
                result = run.result()
            expect(result.code[node] == 3 and result.code[1 - node] == 1, result)
            expect_words(result, others, rf"^init: rank {victim} ended with exit code 3 before it joined the group$")
            return result

        in_time(attempt, others)


def the_only_rank_of_node_0_ends_before_it_joins():
    """Its mezzo-run has nothing to do then but to tell the others, which may come later than that."""
    with nodes("crash_before_joining", ranks=1, nodes=3, TEST_VICTIM=0) as run:
        result = run.result()
    expect(result.code == [3, 1, 1], result)
    expect_words(result, (1, 2), "^init: rank 0 ended with exit code 3 before it joined the group$")


def the_only_rank_of_node_0_is_killed():
    def attempt():
        with nodes("stop_when_asked", ranks=1) as run:
            wait_until_begun(run.folder, 2)
            note_end(run.folder)
            os.kill(gates.children_of(run.launchers[0])[0], signal.SIGKILL)
            result = run.result()
        expect(result.code == [128 + signal.SIGKILL, 1], result)
        expect_words(result, [1], r"^rank 0 \(host \S+, pid \d+\) is gone; it was last seen (in|after) call \d+$")
        expect(matches(r"mezzo-run: first cause: rank 0 \(host \S+, pid \d+\) is gone", result.output), result, "node 0 says so, too")
        return result

    in_time(attempt, [1])


GONE = r"mezzo-run \(host \S+, pid \d+\) is gone; it had started ranks 2 to 3$"


def a_launcher_is_killed_in_training():
    """Its ranks and the others have the same words, and end by themselves."""
    def attempt():
        with nodes("stop_when_asked") as run:
            wait_until_begun(run.folder, 4)
            note_end(run.folder)
            run.kill(1)
            result = run.result()
        expect(result.code == [1, -signal.SIGKILL], result)
        expect_words(result, range(4), "^" + GONE)
        return result

    in_time(attempt, range(4))


def a_launcher_is_killed_while_its_ranks_wait():
    """They end, and the next run at the same port never hears of them."""
    port = free_port()
    with nodes("join_when_told", port=port) as run:
        wait_until_begun(run.folder, 4)
        run.kill(1)
        gates.wait_until(lambda: all(matches(GONE, read(run.folder / str(rank))) for rank in (1, 2, 3)), "words for those that wait")
        (run.folder / ".told").touch()
        result = run.result()
    expect_words(result, range(4), "^init: " + GONE)
    with nodes("join", port=port) as run:
        expect_joined(run.result())


def read(path):
    return path.read_text(encoding="utf-8") if path.exists() else ""


def ranks_of_a_killed_launcher_come_too_late():
    """Its store is gone by then, and does not come again: they end, and do not wait for it."""
    port = free_port()
    with nodes("join_when_told", port=port, ranks=1) as run:
        wait_until_begun(run.folder, 2)
        run.kill(0)
        run.kill(1)
        gates.wait_until(lambda: "is gone" in read(run.folder / "1"), "rank 1 sees it")
        (run.folder / ".told").touch()
        gates.wait_until(lambda: "is gone" in read(run.folder / "0"), "rank 0 finds nobody")
        result = run.result()
    expect_words(result, [0], rf"^init: the store is gone: it was held by the mezzo-run that has started this rank, at 127.0.0.1, port {port}$")
    expect_words(result, [1], r"^init: the store is gone: it was held by mezzo-run \(host \S+, pid \d+\)$")


def what_a_killed_run_has_left_meets_the_next_one():
    """At its own port. It looks on for its own store, in vain, and does not disturb."""
    port = free_port()
    with nodes("join_when_told", port=port, ranks=1, TEST_RENDEZVOUS_TIMEOUT=3) as run:
        wait_until_begun(run.folder, 2)
        run.kill(1)
        run.kill(0)
        with nodes("join", port=port, ranks=1, late=(1,)) as following:
            (run.folder / ".told").touch()
            result = run.result()
            following.start(1)
            expect_joined(following.result())
    expect_words(result, [0], r"^init: rank 0 of 2 found no store of this run .*: this is the store of another run, of 2 ranks; got rank 0 of 2$")


def a_launcher_is_killed_before_the_others_have_come():
    """It has started nothing, and another one takes its place."""
    with nodes("join", late=(0, 1)) as run:
        run.start(1)
        gates.wait_until(lambda: takes_signals(run.launchers[1]), "it looks for node 0")
        time.sleep(0.3)  # in which it would start its ranks
        run.kill(1)
        expect(not descendants_named(str(run.folder)), "ranks that were started")
        run.start(1)
        run.start(0)
        expect_joined(run.result())


def none_starts_before_all_have_met():
    """Of three nodes one is killed while another is missing, and replaced."""
    with nodes("join", nodes=3, ranks=1, late=(1, 2)) as run:
        for replaced in (False, True):
            run.start(1)
            gates.wait_until(lambda: takes_signals(run.launchers[1]), "it looks for node 0")
            time.sleep(0.5)  # in which it would start its rank
            launchers = [launcher.pid for launcher in run.launchers.values()]
            expect(sorted(descendants_named(str(run.folder))) == sorted(launchers), launchers, "ranks that were started")
            if not replaced:
                run.kill(1)
        run.start(2)
        result = run.result()
    expect(result.code == [0, 0, 0], result)
    expect_words(result, range(3), r"^joined \d of 3$")


def a_killed_launcher_is_replaced():
    """Node 0 starts its ranks again, and another mezzo-run of node 1, which knows of no start before and starts nothing again, joins that one."""
    with nodes("", late=(0, 1)) as run:
        run.command = ["sh", "-c", f"if [ $MEZZO_RESTART_COUNT = 0 ]; then exec {PROGRAM} stop_when_asked {run.folder}; fi; exec {PROGRAM} join {run.folder}"]
        run.start(0, "--restarts", "1")
        run.start(1)
        wait_until_begun(run.folder, 4)
        run.kill(1)
        run.start(1)
        expect_joined(run.result())


def a_node_does_not_come():
    """Each says whom it has waited for, and has started nothing."""
    for node, words in ((0, "node 1 has not come"), (1, r"--master: no mezzo-run of node 0 at 127.0.0.1:\d+")):
        with nodes("join", late=(1 - node,), options=("--wait", "0.5")) as run:
            result = run.result()
        expect(result.code == [1] and not result.ranks, result)
        expect(matches(rf"^mezzo-run: {words}; it was waited for 0.5 s\n$", result.output), result)


def nodes_that_differ():
    """One of another number of processes is told what node 0 has."""
    seconds = 0.5
    with nodes("join", late=(1,)) as run:
        while True:  # the answer may be late
            run.start(1, "--wait", str(seconds), ranks=3)
            code = run.wait(1)
            if "processes" in run.outputs[1] or seconds > 60:
                break
            seconds *= 4
        words = "node 0 is one of 2 nodes with 2 processes each, this is node 1 of 2 with 3 each; it was waited for"
        expect(code == 1 and words in run.outputs[1], run.outputs)
        run.start(1)
        expect_joined(run.result())


def takes_signals(process):
    """It reads SIGTERM, for which it blocks it."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    blocked = next(line for line in status.split("\n") if line.startswith("SigBlk:"))
    return int(blocked.split()[1], 16) >> (signal.SIGTERM - 1) & 1 == 1


def a_signal_while_nodes_wait():
    for node in (0, 1):
        with nodes("join", late=(1 - node,)) as run:
            gates.wait_until(lambda: takes_signals(run.launchers[node]), "it takes signals")
            run.launchers[node].terminate()
            result = run.result()
        expect(result.code == [128 + signal.SIGTERM] and not result.ranks and result.output == "", result)


def programs_without_a_group():
    """They do not hear of each other, and it does not matter how soon those of node 0 end."""
    with nodes("", late=(0, 1)) as run:
        run.command = ["sh", "-c", "echo rank $RANK; exit $((RANK == 3 ? 4 : 0))"]
        run.start(0)
        gates.wait_until(lambda: takes_signals(run.launchers[0]), "it waits for node 1")
        time.sleep(0.3)  # in which they would end
        run.start(1)
        result = run.result()
    expect(result.code == [0, 4] and all(f"[{rank}] rank {rank}\n" in result.output for rank in range(4)), result)


main([a_rank_ends_before_it_joins, the_only_rank_of_node_0_ends_before_it_joins, the_only_rank_of_node_0_is_killed, a_launcher_is_killed_in_training,
      a_launcher_is_killed_while_its_ranks_wait, ranks_of_a_killed_launcher_come_too_late,
      what_a_killed_run_has_left_meets_the_next_one, a_launcher_is_killed_before_the_others_have_come, none_starts_before_all_have_met, a_killed_launcher_is_replaced,
      a_node_does_not_come, nodes_that_differ, a_signal_while_nodes_wait, programs_without_a_group])
