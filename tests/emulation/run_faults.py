#!/usr/bin/env python3
"""Proves that the tools still bite: every planted fault must be stopped by the build named for it.

usage: run_faults.py PLANTED_FAULTS_BINARY [plain|address|thread]

The binary is tests/emulation/planted_faults.cu built without sanitizer (plain), with address,undefined (address) or
with thread (thread). What stops a fault is part of the expectation: a wrong result does not count as a race report.
"""
import os
import subprocess
import sys

wrong = 'wrong result'
race = 'ThreadSanitizer: data race'
every_build = {
    'half_block_barrier': 'deadlock',
    'two_barriers': 'divergent __syncthreads',
    'early_return': 'deadlock',
    'divergent_shuffle': 'deadlock',
    'shuffle_outside_mask': 'which is not in the mask',
    'uninitialised_shared': wrong,
}
by_build = {
    'plain': {'no_syncthreads': wrong},
    'address': {
        'shared_out_of_bounds': 'index 8 out of bounds',
        'dynamic_out_of_bounds': 'heap-buffer-overflow',
        'global_out_of_bounds': 'heap-buffer-overflow',
        'misaligned_vector': 'misaligned address',
        'index_overflow': 'signed integer overflow',
        'host_touches_device': 'use-after-poison',
        'use_after_free': 'heap-use-after-free',
    },
    'thread': {
        'no_syncthreads': race,
        'shared_reuse': race,
        'no_syncwarp': race,
        'block_race': race,
        'no_fence': race,
    },
}


def main():
    binary, build = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else 'plain'
    environment = dict(os.environ, TSAN_OPTIONS='halt_on_error=1:exitcode=66', UBSAN_OPTIONS='halt_on_error=1')
    failures = 0
    for fault, reason in [('good', 'ok'), *every_build.items(), *by_build[build].items()]:
        run = subprocess.run([binary, fault], capture_output=True, text=True, env=environment, timeout=120)
        output = run.stdout + run.stderr
        fine = reason in output and (run.returncode == 0) == (fault == 'good')
        failures += not fine
        print(f'{"PASS" if fine else "FAIL"} {build} {fault}: {reason}')
        if not fine:
            print(f'  exit {run.returncode}\n' + output[:2000])
    sys.exit(failures != 0)


if __name__ == '__main__':
    main()
