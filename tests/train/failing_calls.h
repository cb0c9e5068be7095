// System calls that fail when a test says so: a library for LD_PRELOAD. The functions are weak, and null in a
// program that runs without it.
#pragma once

extern "C" {

// Makes the n-th call from now on (from 1) of those in failing_calls.cpp fail with errno `code`, or transfer
// only half of its bytes if `code` is 0; with `all` the later calls fail, too. n = 0: no call fails.
[[gnu::weak]] void mezzo_test_fail(long n, int code, bool all);
// Number of calls since mezzo_test_fail().
[[gnu::weak]] long mezzo_test_calls();
}
