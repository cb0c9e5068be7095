#!/usr/bin/env python3
"""Plants faults in the real kernels, one at a time, and proves that mezzo-tests-ptx finds each.

usage: faults.py [--only TEXT] BUILD_FOLDER
       faults.py --check    only whether every fault still finds its place; compiles nothing

BUILD_FOLDER has been built, with nvcc. Only PTX is made of each source that has a fault, so that a fault takes seconds. Exit
status 0: every fault was found, in the way that the list says.
"""
import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'emulation'))
from mutate import BARRIER, replaced  # noqa: E402

PROGRAM = 'tests/ptx/mezzo-tests-ptx'
WRONG = r'FAILED:'  # a case's own comparison
RACE = 'PTX: (race|read of shared memory that nothing has written)'

# name, file, text to find, which of its occurrences (from 0), replacement, source to compile, file of cases, what finds it,
# whether mezzo-tests-emulated could find it, too: it does not see inline PTX, nor what nvcc's attributes say.
FAULTS = [
    ('an index one too far', 'cuda/reduce/softmax.cu', 'j < r.cols', 0, 'j <= r.cols', 'cuda/reduce/softmax.cu', 'cuda_kernels_test', WRONG, True),
    ('no barrier between a write and reads of shared memory', 'cuda/kernel.cuh', BARRIER, 2, '', 'cuda/reduce/softmax.cu', 'cuda_kernels_test', RACE, True),
    ('no wait for cp.async', 'cuda/attention/flash_attention.cu', 'copy_async_wait<0>();', 0, '', 'cuda/attention/flash_attention.cu', 'cuda_attention_test',
     'nothing has written', True),
    ('a mask without the upper lanes', 'cuda/attention/flash_attention.cu', '0xffffffffu', 0, '0x0000ffffu', 'cuda/attention/flash_attention.cu',
     'cuda_attention_test', 'is not in its own mask', True),
    ('a vector that is not aligned', 'cuda/elementwise/elementwise.cuh', '(stride == 1 && !aligned)', 0, 'false', 'cuda/elementwise/unary.cu', 'cuda_kernels_test',
     'misaligned global address', True),
    ('fragments of B in the wrong order', 'cuda/mma.cuh', '"r"(b.v[0]), "r"(b.v[1]));', 0, '"r"(b.v[1]), "r"(b.v[0]));',
     'tests/cuda/mma_kernels.cu', 'mma_test', WRONG, False),
    ('matrices that are not transposed', 'cuda/mma.cuh', 'x4.trans.shared', 0, 'x4.shared', 'tests/cuda/mma_kernels.cu', 'mma_test', WRONG, False),
    ('cp.async of 16 bytes always', 'cuda/mma.cuh', '[%1], 16, %2;"', 0, '[%1], 16;"', 'tests/cuda/mma_kernels.cu', 'mma_test', WRONG, False),
    ('dynamic shared memory that is not allowed', 'cuda/kernel.cuh', 'if (shared > 48 * 1024)', 0, 'if (false)', 'cuda/attention/flash_attention.cu',
     'cuda_attention_test', 'launch refused: .* bytes of shared memory', False),
    ('launch bounds below the block', 'cuda/norm/batch_norm.cu', '__launch_bounds__(channels_block, 2)', 0,
     '__launch_bounds__(channels_block / 2, 2)', 'cuda/norm/batch_norm.cu', 'batch_norm_kernels_test', 'maxntid', False),
    ('words of a vector store in the wrong order', 'cuda/elementwise/packs.cuh', '{%1, %2, %3, %4}', 0, '{%1, %3, %2, %4}', 'cuda/elementwise/activation_grad.cu',
     'cuda_activation_grad_test', WRONG, False),
]


class Build:
    """The commands of the build folder's build.ninja."""

    def __init__(self, folder):
        self.folder = folder
        with open(os.path.join(folder, 'build.ninja')) as lines:
            self.ninja = lines.read()
        rule = re.search(rf'^build {PROGRAM}: cpp_LINKER ([^|\n]*).*?^ LINK_ARGS = ([^\n]*)', self.ninja, re.M | re.S)
        self.objects, self.link_args = rule.group(1).split(), shlex.split(rule.group(2))

    def compile(self, source, target, overlay):
        command = next(shlex.split(line) for line in re.findall(r'^ COMMAND = (.*)', self.ninja, re.M) if f'-c ../{source} ' in line)
        command = command[next(i for i, word in enumerate(command) if word.endswith('/nvcc')):]
        oldest = re.search(r'arch=(compute_\d+)', command[-1]).group(1)
        options = [word for word in command[1:] if word.startswith(('-std', '-O', '-X', '-D', '-I', '--compress'))]
        mutated = os.path.join(overlay, source)
        path = mutated if os.path.exists(mutated) else f'../{source}'
        subprocess.run([command[0], '-c', path, '-o', target, f'-I{overlay}', *options, f'-gencode=arch={oldest},code={oldest}'],
                       cwd=self.folder, check=True)

    def link(self, source, made, target):
        """`made` stands for the source's object, or comes before the archive that has it."""
        name = os.path.basename(source) + '.o'
        others = [o for o in self.objects if os.path.basename(o) != name]
        subprocess.run(['c++', '-o', target, made, *others, *self.link_args], cwd=self.folder, check=True)


def attempt(build, fault):
    name, file, find, occurrence, replacement, source, cases, reason, _ = fault
    with tempfile.TemporaryDirectory() as overlay:
        os.makedirs(os.path.join(overlay, os.path.dirname(file)))
        with open(os.path.join(overlay, file), 'w') as out:
            out.write(replaced(file, find, occurrence, replacement)[0])
        made, program = os.path.join(overlay, 'made.o'), os.path.join(overlay, 'tests-ptx')
        build.compile(source, made, overlay)
        build.link(source, made, program)
        run = subprocess.run([program, '-#', f'[#{cases}]~[.]'], cwd=build.folder, capture_output=True, text=True, errors='replace', timeout=600)
    output = run.stdout + run.stderr
    found = run.returncode != 0 and re.search(reason, output) is not None
    findings = sorted(set(re.findall(r'^PTX: ([^:\n]*)', output, re.M)))
    print(f'{"found" if found else "NOT FOUND"}: {name} ({file}): exit {run.returncode}, {output.count(WRONG)} wrong results, '
          f'reports: {", ".join(findings) or "none"}', flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', default='', help='only faults whose name contains this')
    parser.add_argument('--check', action='store_true')
    parser.add_argument('build', nargs='?')
    options = parser.parse_args()
    for _, file, find, occurrence, replacement, *_ in FAULTS:
        replaced(file, find, occurrence, replacement)
    if options.check:
        return
    build = Build(os.path.abspath(options.build))
    chosen = [fault for fault in FAULTS if options.only in fault[0]]
    found = sum(attempt(build, fault) for fault in chosen)
    only_here = [fault[0] for fault in chosen if not fault[-1]]
    print(f'{found} of {len(chosen)} faults found; mezzo-tests-emulated cannot find: {", ".join(only_here)}')
    sys.exit(found != len(chosen))


if __name__ == '__main__':
    main()
