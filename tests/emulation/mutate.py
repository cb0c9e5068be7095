#!/usr/bin/env python3
"""Breaks the real kernels in one place at a time and proves that the kernel tests notice.

usage: mutate.py [--group attention|conv|gemm|ops] [--only TEXT] [--jobs N] LIBRARY...
       mutate.py --check    only whether every mutation still finds its place; compiles nothing

LIBRARY are archives or objects of the rest of mezzo, built without sanitizer; the registry of backends with
-DMEZZO_HAVE_CUDA. In a build folder: src/libcore.a src/libformatting.a src/cpu/lib*.a tests/libemulated_registry.a
(or src/libregistry.a) -- -lfmt; for groups attention and conv also tests/libemulated_cuda.a, which has the other
kernels. Options for the linker come after `--`. All of group ops takes about 9 minutes on one core.
Each mutation names the build that must stop it: plain (a wrong result or a report of the emulator), address
(AddressSanitizer and UBSan) or thread (ThreadSanitizer: missing synchronisation). The unbroken tree must pass in every
build first. Exit status 0: every mutation was stopped.
"""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FLAGS = {
    'plain': [],
    'address': ['-fsanitize=address,undefined', '-fno-sanitize-recover=undefined'],
    'thread': ['-fsanitize=thread'],
}
sys.path.insert(0, os.path.join(ROOT, 'tools'))
from gpu.build import lists  # noqa: E402

EMULATOR = lists('tests/meson.build')['emulator_sources']
CUDA = lists('cuda/meson.build')
BACKEND = [*CUDA['cuda_sources'], *CUDA['cuda_kernels'], 'src/core/memory/allocator.cpp']
GROUPS = {
    'attention': {
        'sources': ['cuda/attention/attention.cu', 'cuda/attention/attention_grad.cu', 'cuda/attention/flash_attention.cu',
                    'cuda/attention/flash_attention_grad.cu', 'cuda/backend.cpp', 'src/core/memory/allocator.cpp'],
        'tests': ['tests/cuda/cuda_attention_test.cpp', 'tests/cuda/mma_test.cpp', 'tests/cuda/mma_kernels.cu', 'tests/support/support.cpp'],
        # what the slow builds run: a few blocks of everything
        'cases': {'thread': 'mma:*,cuda attention: small*', 'address': 'mma:*,cuda attention: small*'},
    },
    'conv': {
        'sources': ['cuda/conv/conv.cpp', 'cuda/conv/conv_implicit.cu', 'cuda/conv/conv_implicit_weight.cu',
                    'cuda/conv/conv_implicit_weight_bf16.cu', 'cuda/conv/im2col.cu', 'cuda/backend.cpp', 'src/core/memory/allocator.cpp'],
        'tests': ['tests/cuda/cuda_conv_test.cpp', 'tests/cuda/cuda_implicit_conv_test.cpp', 'tests/support/support.cpp'],
        'cases': {'thread': 'cuda conv: small*', 'address': 'cuda conv: small*,cuda conv: no pixels*,cuda conv: matrices*'},
    },
    'gemm': {
        'sources': BACKEND,
        'tests': ['tests/emulation/emulation_test.cpp', 'tests/cuda/cuda_gemm_test.cpp', 'tests/emulation/gemm_paths_test.cpp'],
    },
    'ops': {
        # the allocator too: under AddressSanitizer every block is a system allocation of its own
        'sources': BACKEND,
        'tests': ['tests/cuda/cuda_activation_grad_test.cpp', 'tests/cuda/cuda_kernels_test.cpp', 'tests/cuda/cuda_step_test.cpp', 'tests/support/support.cpp'],
        # The first of them compares with the CPU's kernels, whose threads the sanitizer does not see into.
        'cases': {'thread': '~cuda: gradient of*~cuda: a linear layer below*~cuda: column sums are*'},
    },
}
BARRIER = '__syncthreads();'
WAIT = 'copy_async_wait<0>();'

# group, file, text to find, which of its occurrences (from 0), replacement, build that must stop it
MUTATIONS = [
    *[('attention', 'cuda/attention/attention_tiles.cuh', BARRIER, n, '', 'thread') for n in range(3)],
    ('attention', 'cuda/attention/attention_tiles.cuh', '__syncthreads_or(b.stage(t.b, b0, column + n * tile)) != 0', 0, 'b.stage(t.b, b0, column + n * tile)', 'thread'),
    *[('attention', 'cuda/attention/flash_attention.cu', BARRIER, n, '', 'thread') for n in range(2)],
    *[('attention', 'cuda/attention/flash_attention_grad.cu', BARRIER, n, '', 'thread') for n in (0, 1, 2, 4)],
    ('attention', 'cuda/attention/flash_attention.cu', WAIT, 0, '', 'plain'),
    ('attention', 'cuda/attention/flash_attention_grad.cu', WAIT, 0, '', 'plain'),
    ('attention', 'cuda/attention/flash_attention.cu', 'fetch(stage ^ 1, j0 + step)', 0, 'fetch(stage, j0 + step)', 'plain'),
    ('attention', 'cuda/attention/flash_attention.cu', 'j0 + columns <= a.key', 0, 'true', 'plain'),
    ('attention', 'cuda/attention/flash_attention.cu', 'j0 + columns - 1 > i0', 0, 'j0 > i0', 'plain'),
    ('attention', 'cuda/attention/flash_attention.cu', 'max == -INFINITY ? 0.0f : max;', 0, 'max;', 'plain'),
    ('attention', 'cuda/attention/flash_attention.cu', 'sum *= shrink;', 0, '', 'plain'),
    ('attention', 'cuda/attention/flash_attention.cu', 'row < a.query', 0, 'row <= a.query', 'address'),
    ('attention', 'cuda/attention/flash_attention.cuh', 'if (row >= length) continue;', 0, '', 'address'),
    ('attention', 'cuda/attention/flash_attention.cuh', 'threadIdx.x % 4 * 8', 0, '0', 'plain'),
    ('attention', 'cuda/attention/flash_attention.cuh', '+ e / 2 * 8)', 0, ')', 'plain'),
    ('attention', 'cuda/attention/flash_attention_grad.cu', 'j0 + tiles * 16 - 1 > i0', 0, 'j0 > i0', 'plain'),
    ('attention', 'cuda/attention/flash_attention_grad.cu', 'a.first_query(at.first, step)', 0, '(a.first_query(at.first, step) + step)', 'plain'),
    ('attention', 'cuda/attention/flash_attention_grad.cu', 'if (begin < end) {', 0, '{', 'plain'),
    ('attention', 'cuda/attention/flash_attention_grad.cu', 'first + n + r < a.query', 0, 'true', 'address'),
    ('attention', 'cuda/attention/flash_attention_grad.cu', 'i * 16 + half * 8 + lane_row();', 0, 'i * 16 + lane_row();', 'plain'),
    ('attention', 'cuda/attention/attention_grad.cu', 'left < warp_rows', 0, 'false', 'address'),
    *[('attention', 'cuda/attention/attention_grad.cu', '__syncwarp();', n, '', 'thread') for n in range(2)],
    ('attention', 'cuda/attention/attention.cuh', 'if (total == C(0))', 0, 'if (false)', 'plain'),
    ('attention', 'cuda/attention/attention_tiles.cuh', 'row >= length || column >= a.dim', 0, 'column >= a.dim', 'address'),
    ('attention', 'cuda/attention/attention_tiles.cuh', 'r < rows && ', 0, '', 'address'),
    ('attention', 'cuda/attention/attention.cuh', 'if (skip != 0)', 0, 'if (false)', 'plain'),
    ('attention', 'cuda/attention/attention.cuh', 'i >= query || ', 0, '', 'address'),
    ('conv', 'cuda/conv/conv_implicit.cuh', BARRIER, 0, '', 'thread'),
    ('conv', 'cuda/conv/conv_implicit.cuh', BARRIER, 1, '', 'thread'),
    ('conv', 'cuda/conv/conv_implicit.cuh', BARRIER, 2, '', 'thread'),
    ('conv', 'cuda/conv/conv_implicit.cu', BARRIER, 0, '', 'thread'),
    ('conv', 'cuda/conv/conv_implicit.cuh', 'copy_async_wait<conv_stages - 2>();', 0, '', 'plain'),
    ('conv', 'cuda/conv/conv_implicit.cuh', 'copy_async_wait<conv_stages - 2>();', 0, 'copy_async_wait<conv_stages - 1>();', 'plain'),
    ('conv', 'cuda/conv/conv_implicit.cuh', 'fetch(step + conv_stages - 1)', 0, 'fetch(step + conv_stages - 2)', 'plain'),
    ('conv', 'cuda/conv/conv_implicit.cuh', 'step < steps) {', 0, 'true) {', 'plain'),
    ('conv', 'cuda/conv/conv_implicit.cuh', 'there ? 16 : 0', 0, '16', 'plain'),
    ('conv', 'cuda/conv/conv_implicit.cu', 'a.tap_reach = -dilation / common', 0, 'a.tap_reach = dilation / common', 'plain'),
    ('conv', 'cuda/conv/conv_implicit.cu', 'i < at.stride.height', 0, 'i < 1', 'plain'),
    ('conv', 'cuda/conv/conv_implicit.cu', '(phase - a.tap_first * dilation) % stride', 0, '(phase + a.tap_first) % stride', 'plain'),
    ('conv', 'cuda/conv/conv_implicit.cu', 'k < f.factors &&', 0, 'true &&', 'plain'),
    ('conv', 'cuda/conv/conv_implicit.cu', ' && k < f.factors', 0, '', 'address'),
    ('conv', 'cuda/conv/conv_implicit.cu', 'c < p.result_channels && ', 0, '', 'address'),
    ('conv', 'cuda/conv/conv_implicit.cu', 'pixel >= f.pixels || ', 0, '', 'address'),
    ('conv', 'cuda/conv/conv_implicit.cu', '|| first_column + column >= p.result_channels', 0, '', 'plain'),
    ('conv', 'cuda/conv/conv_implicit_weight.cuh', 'pixel < p.pixels && o', 0, 'o', 'address'),
    ('conv', 'cuda/conv/conv_implicit_weight.cuh', 'if (column >= p.window) continue;', 0, '', 'plain'),
    ('conv', 'cuda/conv/im2col.cu', 'sum += parts[part * n + i]', 0, 'sum += parts[(count - 1 - part) * n + i]', 'plain'),
    ('conv', 'cuda/conv/im2col.cu', 'if (beta != 0) sum', 0, 'sum', 'plain'),
    ('conv', 'cuda/conv/im2col.cu', 'column < w.vectors && ', 0, '', 'plain'),
    ('conv', 'cuda/conv/im2col.cu', 'v < w.width', 0, 'v <= w.width', 'plain'),
    ('conv', 'cuda/conv/im2col.cu', 'g_row >= band.result_rows', 0, 'g_row > band.result_rows', 'plain'),
    ('conv', 'cuda/conv/im2col.cu', 'to_v >= g_width', 0, 'to_v > g_width', 'plain'),
    ('conv', 'cuda/conv/conv.cpp', 'g.beta = 1;', 0, '', 'plain'),
    ('conv', 'cuda/conv/conv.cpp', '(most - 2) * s.geometry', 0, '(most + 2) * s.geometry', 'address'),
    ('gemm', 'cuda/kernel.cuh', BARRIER, 1, '', 'thread'),
    ('gemm', 'cuda/kernel.cuh', BARRIER, 2, '', 'thread'),
    ('gemm', 'cuda/kernel.cuh', 'MEZZO_SHARED(T, partial, [32])', 0, 'MEZZO_SHARED(T, partial, [4])', 'address'),
    ('gemm', 'cuda/kernel.cuh', 'lane < warps ? partial[lane] : identity', 0, 'partial[lane]', 'plain'),
    ('gemm', 'cuda/kernel.cuh', 'distance = 16', 0, 'distance = 8', 'plain'),
    ('gemm', 'cuda/gemm/fallback.cu', BARRIER, 0, '', 'thread'),
    ('gemm', 'cuda/gemm/fallback.cu', BARRIER, 1, '', 'thread'),
    ('gemm', 'cuda/gemm/fallback.cu', 'i < g.m && ka < g.k ?', 0, 'ka < g.k ?', 'address'),
    ('gemm', 'cuda/gemm/fallback.cu', 'j < g.n && kb < g.k ?', 0, 'j < g.n ?', 'address'),
    ('gemm', 'cuda/gemm/fallback.cu', 'i >= g.m || j >= g.n', 0, 'i >= g.m', 'plain'),
    ('gemm', 'cuda/gemm/fallback.cu', 'b_tile, [tile][tile + 1]', 0, 'b_tile, [tile - 1][tile + 1]', 'address'),
    ('gemm', 'cuda/gemm/epilogue.cu', 'if (column >= p.n) continue;', 0, '', 'address'),
    ('gemm', 'cuda/gemm/epilogue.cu', 'row < p.m', 0, 'row <= p.m', 'address'),
    ('gemm', 'cuda/gemm/check_kernels.cu', 'i < o.elements', 0, 'i <= o.elements', 'address'),
    ('gemm', 'cuda/gemm/check_kernels.cu', 'atomicAdd(count, different)', 0, '*count += different', 'thread'),
    ('gemm', 'cuda/gemm/check_kernels.cu', 'k >= first_one', 0, 'true', 'plain'),
    ('gemm', 'cuda/gemm/plans.cpp', 'cached.verified && run_algo', 0, 'run_algo', 'plain'),
    ('ops', 'cuda/reduce/gradient_sums.cuh', 's = 0; s < to.splits', 0, 's = 1; s < to.splits', 'plain'),
    ('ops', 'cuda/reduce/gradient_sums.cuh', 'column < to.cols && ', 0, '', 'address'),
    ('ops', 'cuda/reduce/gradient_sums.cuh', 'unsigned(to.splits)', 0, 'unsigned(to.splits - 1)', 'plain'),
    ('ops', 'cuda/reduce/reduce.cuh', BARRIER, 0, '', 'thread'),
    ('ops', 'cuda/reduce/reduce.cuh', BARRIER, 1, '', 'thread'),
    ('ops', 'cuda/reduce/reduce.cuh', 'output < s.kept.count', 0, 'true', 'address'),
    ('ops', 'cuda/reduce/softmax.cu', 'j < r.cols', 0, 'j <= r.cols', 'plain'),
    ('ops', 'cuda/reduce/softmax.cu', 'j < r.cols', 2, 'j <= r.cols', 'address'),
    ('ops', 'cuda/reduce/softmax.cu', 'row < r.rows', 1, 'row <= r.rows', 'address'),
    ('ops', 'cuda/optim/step_update.cu', BARRIER, 0, '', 'thread'),
    ('ops', 'cuda/optim/step_update.cu', BARRIER, 1, '', 'thread'),
    ('ops', 'cuda/kernel.cuh', BARRIER, 1, '', 'thread'),
    ('ops', 'cuda/reduce/reduce.cuh', 'begin + part < s.reduced.count ? begin + part : s.reduced.count', 0, 'begin + part',
     'plain'),
    ('ops', 'cuda/reduce/reduce.cuh', 'begin + part < s.reduced.count ? begin + part : s.reduced.count', 1, 'begin + part',
     'plain'),
    ('ops', 'cuda/reduce/reduce.cuh', 'i < splits', 0, 'i <= splits', 'plain'),
    ('ops', 'cuda/reduce/cross_entropy.cu', '!targets.skip(row) && targets.valid(row)', 0, '!targets.skip(row)', 'address'),
    ('ops', 'cuda/reduce/cross_entropy.cu', 'if (!targets.valid(row)) return {static_cast<C>(NAN), C(1)};', 0, '', 'address'),
    *[('ops', 'cuda/reduce/ticket.cuh', BARRIER, n, '', 'thread') for n in range(2)],
    *[('ops', 'cuda/reduce/ticket.cuh', '__threadfence();', n, '', 'thread') for n in range(2)],
    ('ops', 'cuda/reduce/ticket.cuh', 'atomicExch(ticket, 0u)', 0, '(void)0', 'plain'),
    ('ops', 'cuda/optim/step_gradients.cu', 'i + u * blockDim.x < count', 0, 'i < count', 'address'),
    ('ops', 'cuda/optim/step_gradients.cu', '__syncthreads_or(look.bad) != 0', 0, 'look.bad', 'plain'),
    ('ops', 'cuda/optim/step_gradients.cu', 'i < chunks.end', 0, 'i <= chunks.end', 'address'),
    ('ops', 'cuda/optim/step_update.cu', 'i < whole', 0, 'i <= whole', 'address'),
    ('ops', 'cuda/optim/step_update.cu', 'i < chunks.end', 0, 'i <= chunks.end', 'address'),
    ('ops', 'cuda/optim/step_table.cuh', 'end < numel ? end : numel', 0, 'end', 'address'),
    ('ops', 'cuda/optim/step_update.cu', 'control.last && threadIdx.x == 0', 0, 'threadIdx.x == 0', 'plain'),
    ('ops', 'cuda/optim/step_update.cu', 'control.last && first_item() == 0', 0, 'first_item() == 0', 'plain'),
    ('ops', 'cuda/elementwise/random.cu', 'if (block * 4 + i < n) ', 0, '', 'plain'),
    ('ops', 'cuda/elementwise/random.cu', 'if (block * 8 + i >= n) continue;', 0, '', 'plain'),
    ('ops', 'cuda/elementwise/copy.cu', 'vectors * width + first_item(); i < n', 0, 'vectors * width + first_item(); i <= n',
     'address'),
    ('ops', 'cuda/elementwise/elementwise.cuh', '(stride == 1 && !aligned)', 0, 'false', 'address'),
]


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


class Build:
    """The unbroken objects of one group under one sanitizer, and how to rebuild with one file replaced."""

    def __init__(self, group, variant, folder, libraries):
        self.folder = os.path.join(folder, f'{group}-{variant}')
        os.makedirs(self.folder)
        self.flags = FLAGS[variant]
        self.cases = GROUPS[group].get('cases', {}).get(variant)
        self.libraries = libraries
        members = GROUPS[group]
        self.objects = {s: self.compile(s, self.folder) for s in [*EMULATOR, *members['sources'], *members['tests']]}
        self.check(self.link(self.objects, self.folder), 'the unbroken tree')

    def compile(self, source, folder, overlay=None):
        target = os.path.join(folder, source.replace('/', '_') + '.o')
        includes = [f'-I{d}' for d in ([overlay] if overlay else []) + ['.', 'include', 'src', 'tests/emulation/cublaslt']]
        path = os.path.join(overlay, source) if overlay and os.path.exists(os.path.join(overlay, source)) else source
        result = run(['g++', '-std=c++20', '-O1', '-g1', '-DMEZZO_HAVE_CUDA', *self.flags, *includes, '-MMD', '-x',
                      'c++', '-c', path, '-o', target], cwd=ROOT)
        if result.returncode != 0:
            sys.exit(f'{source} does not compile:\n{result.stderr[:3000]}')
        return target

    def depends(self, source, file):
        with open(self.objects[source][:-2] + '.d') as names:
            return re.search(rf'(^|[\s/]){re.escape(file)}(\s|$)', names.read()) is not None

    def link(self, objects, folder):
        target = os.path.join(folder, 'tests')
        result = run(['g++', *self.flags, *objects.values(), '-Wl,--start-group', *self.libraries, '-Wl,--end-group',
                      '-lCatch2WithMain', '-lpthread', '-o', target], cwd=ROOT)
        if result.returncode != 0:
            sys.exit(f'linking failed:\n{result.stderr[:3000]}')
        return target

    def execute(self, binary):
        environment = dict(os.environ, TSAN_OPTIONS='halt_on_error=1', ASAN_OPTIONS='detect_container_overflow=0')
        try:
            result = run([binary, '--abort', *([self.cases] if self.cases else [])], env=environment, timeout=300)
            return result.returncode, result.stdout + result.stderr
        except subprocess.TimeoutExpired:
            return 124, 'timeout'

    def check(self, binary, what):
        status, output = self.execute(binary)
        if status != 0:
            sys.exit(f'{what} fails:\n{output[-3000:]}')

    def mutated(self, file, text):
        folder = tempfile.mkdtemp(dir=self.folder)
        overlay = os.path.join(folder, 'overlay')
        os.makedirs(os.path.join(overlay, os.path.dirname(file)))
        with open(os.path.join(overlay, file), 'w') as out:
            out.write(text)
        objects = {s: self.compile(s, folder, overlay) if self.depends(s, file) else o
                   for s, o in self.objects.items()}
        return self.execute(self.link(objects, folder))


def replaced(file, find, occurrence, replacement):
    with open(os.path.join(ROOT, file)) as source:
        text = source.read()
    at = -1
    for _ in range(occurrence + 1):
        at = text.find(find, at + 1)
        if at < 0:
            sys.exit(f'{file}: occurrence {occurrence} of {find!r} is gone; bring the list up to date')
    return text[:at] + replacement + text[at + len(find):], text.count('\n', 0, at) + 1


def reason(output):
    found = re.search(r'AddressSanitizer: [\w-]+|runtime error: [^\n]{0,60}|ThreadSanitizer: data race|deadlock|timeout',
                      output)
    return found.group(0) if found else 'wrong result'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--group', choices=GROUPS, help='only this group')
    parser.add_argument('--only', default='', help='only mutations whose file contains this')
    parser.add_argument('--jobs', type=int, default=2)
    parser.add_argument('--check', action='store_true')
    parser.add_argument('libraries', nargs='*')
    options = parser.parse_args()
    files = {file for group in GROUPS.values() for file in [*group['sources'], *group['tests']]}
    if gone := sorted(file for file in files if not os.path.exists(os.path.join(ROOT, file))):
        sys.exit(f'not there: {", ".join(gone)}')
    for _, file, find, occurrence, replacement, _ in MUTATIONS:
        replaced(file, find, occurrence, replacement)
    if options.check:
        sys.exit(0)
    libraries = [name if name.startswith('-') else os.path.abspath(name) for name in options.libraries]
    chosen = [m for m in MUTATIONS if options.group in (None, m[0]) and options.only in m[1]]
    survivors = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        wanted = sorted({(m[0], m[5]) for m in chosen})
        builds = dict(zip(wanted, pool.map(lambda w: Build(*w, folder, libraries), wanted)))

        def attempt(mutation):
            group, file, find, occurrence, replacement, variant = mutation
            text, line = replaced(file, find, occurrence, replacement)
            status, output = builds[group, variant].mutated(file, text)
            return f'{file}:{line}: {find} -> {replacement or "nothing"} [{variant}]', status, output

        for name, status, output in pool.map(attempt, chosen):
            survivors += status == 0
            print(f'{"SURVIVES" if status == 0 else "stopped"} {name}: {reason(output) if status else "ok"}',
                  flush=True)
    print(f'{len(chosen) - survivors} of {len(chosen)} mutations stopped')
    sys.exit(survivors != 0)


if __name__ == '__main__':
    main()
