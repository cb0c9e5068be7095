// Calls to the system that fail when a test says so: a library for LD_PRELOAD. The functions are weak, and null in a
// program that runs without it.
#pragma once

extern "C" {

// The n-th call from now on (from 1) of those in failing_calls.cpp fails with errno `code`, or transfers only half of
// its bytes where `code` is 0; with `all` those after it fail, too. n = 0: none.
[[gnu::weak]] void mezzo_test_fail(long n, int code, bool all);
// Calls since then.
[[gnu::weak]] long mezzo_test_calls();
}
