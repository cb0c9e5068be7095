#!/usr/bin/env python3
"""Every collective call, on 1 to 4 ranks. Usage: collectives_test.py MEZZO_RUN RANK_PROGRAM GLOO_MODULE [TEST...]"""
from runs import SAME_KERNELS, expect, main, matches, run


def every_call():
    for ranks in (1, 2, 3, 4):
        result = run("collectives", ranks, limit=60)
        expect(result.code == 0, result)
        for rank in range(ranks):
            expect(result.last(rank).startswith(f"ok {rank} of {ranks} "), result)


def differing_calls_are_the_same_error_everywhere():
    result = run("differing_calls", 3)
    expect(result.code == 0, result)
    lines = result.ranks["0"]
    expect(lines == result.ranks["1"] == result.ranks["2"] and len(lines) == 6, result, "the same words on all ranks")
    for line, pattern in zip(lines, ("6 elements of float32 by sum .* 8 elements", "in another shape", "float32 .* float64", "by sum .* by max",
                                     "broadcast_ .* barrier", "from rank 0 .* from rank 1")):
        expect(matches(pattern, line), result, pattern)


def a_rank_may_go_while_others_read():
    for _ in range(3):
        result = run("leave_after_sending", 3)
        expect(result.code == 0 and all(result.last(r) == "ok" for r in range(3)), result)


def trains_equally(scenario):
    for ranks in (2, 3, 4):
        result = run(scenario, ranks, limit=120, **SAME_KERNELS)
        expect(result.code == 0 and all(result.last(r) == "ok" for r in range(ranks)), result)


def trainings_have_the_same_bits_on_all_ranks():
    """And those of one process, over an overflow on one rank; with a sharded optimizer, too."""
    trains_equally("train_equally")


def trainings_with_several_passes_have_the_same_bits():
    """Clipped, and with the overflow in the first pass of one rank."""
    trains_equally("train_equally_in_passes")


def trainings_by_16_bits_have_the_same_bits():
    """Those of gradients that one process rounds, adds in the order of the ranks, and rounds."""
    trains_equally("train_equally_by_16_bits")


def a_sharded_optimizer_has_the_bits_of_one_that_is_not():
    for ranks in (1, 2, 3, 4):
        result = run("shard_an_optimizer", ranks, limit=120)
        expect(result.code == 0 and all(result.last(r) == "ok" for r in range(ranks)), result)


def batch_norms_take_all_ranks_rows():
    for ranks in (2, 3, 4):
        result = run("synchronise_batch_norms", ranks, limit=60)
        expect(result.code == 0 and all(result.last(r) == "ok" for r in range(ranks)), result)


def the_end_of_a_child_is_not_the_end_of_its_rank():
    result = run("fork_child", 2)
    expect(result.code == 0 and result.last(0) == result.last(1) == "ok", result)


def a_process_has_one_group():
    result = run("join_twice", 2)
    expect(result.code == 0 and "has its group of 2 ranks already" in result.last(0), result)


main([every_call, differing_calls_are_the_same_error_everywhere, a_rank_may_go_while_others_read,
      trainings_have_the_same_bits_on_all_ranks, trainings_with_several_passes_have_the_same_bits, trainings_by_16_bits_have_the_same_bits,
      a_sharded_optimizer_has_the_bits_of_one_that_is_not, batch_norms_take_all_ranks_rows,
      the_end_of_a_child_is_not_the_end_of_its_rank, a_process_has_one_group])
