#!/usr/bin/env python3
"""Calls that do not match between ranks, and a rank that forks. Usage: mismatches_test.py MEZZO_RUN RANK_PROGRAM GLOO_MODULE [TEST...]"""
from runs import expect, main, matches, run

LIMIT = 100  # s; a call that met nobody would take TEST_TIMEOUT


def scenario(name, ranks):
    result = run(name, ranks, limit=LIMIT, TEST_TIMEOUT=200, TEST_RENDEZVOUS_TIMEOUT=60)
    expect(result.code == 0, result)
    return result


def other_order():
    """Each of the two calls is the same error on all ranks, which shows both."""
    for ranks in (2, 3):
        result = scenario("other_order", ranks)
        last = ranks - 1
        reduction, broadcast = "all_reduce_ of 6 elements of float32 by sum", "broadcast_ of 4 elements of float32 from rank 1"
        for rank in range(ranks):
            lines = result.ranks[str(rank)]
            expect(len(lines) == 2 and lines == result.ranks["0"][:2], result, "the same words on all ranks")
        for line, number, first, second in zip(result.ranks["0"], (1, 2), (reduction, broadcast), (broadcast, reduction)):
            expect(f"rank 0 has {first} as its call {number}, rank {last} has {second} as its call {number}" in line, result, line)
            expect("same calls in the same order" in line, result, "a hint")


def one_call_short():
    """The next call of that rank meets the one that it left out, and at the end it is a call short."""
    result = scenario("one_call_short", 3)
    differ = "rank 0 has all_reduce_ of 10 elements of float32 by sum as its call 4, rank 2 has barrier as its call 4"
    short = r"rank 2 left after 4 calls, rank [01] waits in call 5: unequal numbers of batches\?"
    expect(len(result.ranks["2"]) == 1 and differ in result.last(2), result)
    first = [result.ranks[str(rank)][0] for rank in (0, 1)]
    # Who is the first in call 5 breaks the group, which the other one may hear while it is in call 4.
    expect(any(differ in line for line in first) and all(differ in line or matches(short, line) for line in first), result)
    expect(all(matches(short, result.last(rank)) for rank in (0, 1)), result)


def other_models():
    """Shapes, lists of parameters and options that differ: the same words on all ranks, and the group goes on."""
    result = scenario("other_models", 3)
    pairs = [("parameter 1.weight float32 [3, 8]", "parameter 1.weight float32 [5, 8]"), ("parameter 1.bias float32 [3]", "first_bucket_bytes = 1048576"),
             ("parameter 1.bias float32 [3]", "parameter 1.bias float32 [3] without gradient"), ("first_bucket_bytes = 1024", "first_bucket_bytes = 512"),
             ("bucket_bytes = 4096", "bucket_bytes = 2048"), ("wire = float32", "wire = bfloat16"), ("ordered = false", "ordered = true"),
             ("check_interval = 3", "check_interval = 7")]
    expected = [f"DataParallel: {first} on rank 0 and {last} on rank 2; all ranks must make the same model, with the same options" for first, last in pairs]
    for rank in range(3):
        expect(result.ranks[str(rank)] == expected + ["no error"], result, f"rank {rank}")


def a_bucket_meets_another_call():
    """All ranks get both calls, and afterwards the group is of no use."""
    result = scenario("bucket_meets_barrier", 2)
    for rank in (0, 1):
        lines = result.ranks[str(rank)]
        expect(matches(r"rank 0 has DataParallel's reduction of bucket 0, \d+ elements of float32 as its call (\d+), rank 1 has barrier as its call \1;", lines[0]), result, f"rank {rank}")
        expect(lines[1] != "no error", result, "the group is broken")


def a_forked_child_is_no_rank():
    """Each call in it says so, and neither these nor its end disturb the group."""
    result = scenario("fork_calls", 2)
    words = r"Group: process \d+ was forked from rank 0 and is no rank itself; collective calls come from process \d+"
    lines = result.ranks["0"]
    expect(len(lines) == 5 and all(matches(words, line) for line in lines[:4]) and lines[4] == "ok", result)
    expect(result.ranks["1"] == ["ok"], result)


main([other_order, one_call_short, other_models, a_bucket_meets_another_call, a_forked_child_is_no_rank])
