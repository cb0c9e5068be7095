"""What tests ask of the ranks that another one has ended: its words, and in time."""
from runs import expect, matches, run

SOON = 40  # s: a run with its start and end on a busy machine; without the store's word it would take the timeout of 60 s
WITHIN = 1  # s, from the cause to the words of the last rank
ATTEMPTS = 5  # on a machine with other work a rank may get no processor for longer than that


def expect_cause(result, others, pattern):
    """All of them with the same words."""
    words = {result.last(rank) for rank in others}
    expect(len(words) == 1, result, "the same words on all ranks")
    expect(matches(pattern, words.pop()), result, pattern)


def in_time(attempt, others, within=WITHIN):
    """The result of attempt(), in which the others have ended by themselves and soon after the cause."""
    delays = []
    while len(delays) < ATTEMPTS:
        result = attempt()
        expect(result.seconds < SOON, result, "in time")
        delays.append(result.delay(others))
        if delays[-1] <= within:
            return result
    raise AssertionError(f"the ranks ended after {delays} s; {within} s is the limit")


def fails_with(scenario, pattern, code, ranks=4, **variables):
    def attempt():
        result = run(scenario, ranks, **{"TEST_TIMEOUT": 60, **variables})
        expect(result.code == code, result, f"exit code {code}")
        expect_cause(result, range(ranks - 1), pattern)
        return result

    return in_time(attempt, range(ranks - 1))
