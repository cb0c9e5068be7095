#!/usr/bin/env python3
"""What the other ranks of a training get when the last one fails in backward, or has fewer batches.
Usage: training_failures_test.py MEZZO_RUN RANK_PROGRAM GLOO_MODULE [TEST...]"""
import re

from causes import fails_with
from runs import expect, main

RANKS = (2, 4)


def throws_in_a_hook():
    """Of an exception that is none of mezzo's the others have the words, too."""
    for ranks in RANKS:
        result = fails_with("throw_in_hook", rf"^rank {ranks - 1}: words of a hook$", 1, ranks=ranks)
        expect(result.last(ranks - 1) == "words of a hook", result)
        expect(f"mezzo-run: first cause: rank {ranks - 1}: words of a hook" in result.output, result, "summary")


def throws_in_an_op():
    words = r"matmul: inner sizes differ, \[32, 1000\] and \[7, 5\]"
    for ranks in RANKS:
        result = fails_with("throw_in_op", rf"^rank {ranks - 1}: {words}$", 1, ranks=ranks)
        expect(re.fullmatch(words, result.last(ranks - 1)), result)


def has_fewer_batches():
    for ranks in RANKS:
        last = ranks - 1
        pattern = rf"^rank {last} left after (\d+) calls, rank \d waits in call (\d+): unequal numbers of batches\?$"
        result = fails_with("train_on_fewer_batches", pattern, 1, ranks=ranks)
        left, waits = re.match(pattern, result.last(0)).groups()
        expect(int(waits) == int(left) + 1, result, "the first call that it has not made")
        expect(result.last(last) == "trained", result)


main([throws_in_a_hook, throws_in_an_op, has_fewer_batches])
