#!/usr/bin/env python3
"""Ranks that are killed while they train and save: the checkpoint is whole at any time, and the run that goes on ends with the bits of the uninterrupted one.
Usage: kills_test.py MEZZO_RUN RANK_PROGRAM GLOO_MODULE [TEST...]"""
import os
import pathlib
import random
import signal
import tempfile

import gates
from checkpoints import KILLED, SAVE_EVERY, STEPS, Training
from runs import expect, main, matches, note_end

SEED = 20261
WITHIN = 1  # s, from the kill to the words of the other rank
ATTEMPTS = 5  # on a machine with other work a rank may get no processor for longer than that


def uninterrupted(folder, **variables):
    """The bytes at the end, and those of a checkpoint."""
    training = Training(folder, "whole", **variables)
    end = training.start_to_end()
    expect(training.saved_step() == STEPS, training.saved_step())
    return end, training.checkpoint.read_bytes()


def last_begun(result):
    """The step at which the ranks have begun, which is the same on all of them."""
    steps = {line.removeprefix("begun at step ") for lines in result.ranks.values() for line in lines if line.startswith("begun")}
    expect(len(steps) == 1, result)
    return int(steps.pop())


def expect_killed(result, victim, what):
    """And the other rank has ended by itself, which it does at once, and not by the launcher's hand after the grace. Whether the launcher first sees that or the
    killed one is a matter of time."""
    words = result.last(1 - victim)  # "done" where the end of the training came before the kill, for which the victim then waits
    ended = words == result.last(victim) == "done"  # both: then nobody has lost the killed one
    expect(result.code in (1, KILLED) and (ended or f"first cause: rank {victim} " in result.output), result, what)
    expect(words == "done" or matches(f"rank {victim} .*(is gone|signal 9)", words), result, f"{what}: the words of the rank that was not killed")


def killed(training, victim, what, **arguments):
    """The result of a start in which the victim is killed, and the other rank has its words soon after that, or, where it was writing the checkpoint, after the writing."""
    before = training.checkpoint.read_bytes() if training.checkpoint.exists() else None
    delays = []
    while len(delays) < ATTEMPTS:
        if before is None:
            training.checkpoint.unlink(missing_ok=True)
        else:
            training.checkpoint.write_bytes(before)
        result = training.start(**arguments)
        expect_killed(result, victim, what)
        renamed = training.checkpoint.stat().st_ctime if training.checkpoint.exists() else 0
        delays.append(result.written[str(1 - victim)] - max(result.cause, renamed))
        if delays[-1] <= WITHIN:
            return result
    raise AssertionError(f"{what}: the other rank had its words after {delays} s; {WITHIN} s is the limit")


def killed_at_random(victim, **variables):
    """Again and again, at a random moment of a random step, until the end is near. Whether the checkpoint of that step is written is a matter of time."""
    random_numbers = random.Random(SEED + victim)
    with tempfile.TemporaryDirectory(prefix="mezzo_kills_") as folder:
        end, _ = uninterrupted(folder, **variables)
        training = Training(folder, "killed", **variables)
        kills = 0
        while (before := training.saved_step()) < STEPS - 4:
            step = before + random_numbers.randint(1, 6)
            what = f"{victim}:{step}:after:{random_numbers.randint(0, 6000)}"
            result = killed(training, victim, what, kills=what)
            kills += 1
            expect(last_begun(result) == before, result, what)
            expect(before <= training.saved_step(), result, what)
        expect(kills >= 1, kills)
        expect(training.start_to_end() == end, what, "the bits of the uninterrupted run")


def rank_0_is_killed_at_random():
    killed_at_random(0)


def another_rank_is_killed_at_random():
    killed_at_random(1)


def a_rank_with_a_shard_is_killed_at_random():
    killed_at_random(1, TEST_SHARD=1)


def the_other_rank_never_waits_for_the_grace():
    """Gloo forgets a message where a connection ends while it begins to send it, which about one kill in thirty meets."""
    random_numbers = random.Random(SEED)
    with tempfile.TemporaryDirectory(prefix="mezzo_kills_") as folder:
        for i in range(30):
            what = f"{i % 2}:{random_numbers.randint(1, 8)}:after:{random_numbers.randint(0, 6000)}"
            killed(Training(folder, f"killed{i}"), i % 2, what, kills=what)


def killed_after_some_bytes():
    """Rank 0, in the middle of writing: the checkpoint before it is what it was."""
    random_numbers = random.Random(SEED)
    with tempfile.TemporaryDirectory(prefix="mezzo_kills_") as folder:
        end, checkpoint = uninterrupted(folder)
        training = Training(folder, "killed")
        partial = pathlib.Path(f"{training.checkpoint}.mezzo-partial")
        rounds = 0
        while (before := training.saved_step()) < STEPS - 4:
            step, written = before + SAVE_EVERY * random_numbers.randint(1, 2), random_numbers.randrange(len(checkpoint))
            what = f"0:{step}:write:{written}"
            result = killed(training, 0, what, kills=what)
            expect(result.code == KILLED and "rank 0 of 2 ended with signal 9" in result.output, result)
            expect(partial.stat().st_size == written, partial.stat().st_size, f"killed after {written} bytes")
            expect(training.saved_step() == step - SAVE_EVERY and training.checkpoint.exists() == (step > SAVE_EVERY), training.saved_step())
            what = f"1:{step + 1}:after:0"
            result = killed(training, 1, what, kills=what)  # over what the killed one has left
            expect(last_begun(result) == step - SAVE_EVERY and step <= training.saved_step(), result)
            rounds += 1
        expect(rounds >= 1, rounds)
        expect(training.start_to_end() == end, rounds, "the bits of the uninterrupted run")


def killed_while_rank_0_writes():
    """Rank 0 itself, before its first byte, or another one, which waits for it."""
    for victim in (0, 1):
        with tempfile.TemporaryDirectory(prefix="mezzo_kills_") as folder:
            end, _ = uninterrupted(folder)
            training = Training(folder, "killed")
            training.start(kills="1:5:after:0")
            before = training.saved_step()
            kept = training.checkpoint.read_bytes()

            def kill(process, ranks, training=training, victim=victim):
                with gates.writing_is_held(training.checkpoint) as gate:
                    expect(gates.await_writer(process), process.returncode, "a rank that writes")
                    note_end(ranks)
                    os.kill(gates.children_of(process)[victim], signal.SIGKILL)
                    gate.close()

            result = killed(training, victim, "while rank 0 writes", while_running=kill)
            if victim == 0:
                expect(training.checkpoint.read_bytes() == kept, result, "nothing was written")
            else:
                expect(training.saved_step() > before, result, "what rank 0 had begun is there")
            expect(training.start_to_end() == end, victim, "the bits of the uninterrupted run")


main([rank_0_is_killed_at_random, another_rank_is_killed_at_random, a_rank_with_a_shard_is_killed_at_random,
      the_other_rank_never_waits_for_the_grace, killed_after_some_bytes, killed_while_rank_0_writes])
