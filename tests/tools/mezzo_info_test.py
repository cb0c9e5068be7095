#!/usr/bin/env python3
"""mezzo-info, and the file in which it and all programs keep which kernels multiply.

    mezzo_info_test.py PROGRAM EMULATED    the second has an emulated CUDA device"""
import ctypes
import os
import pathlib
import stat
import struct
import subprocess
import sys
import tempfile

PROGRAM, EMULATED = sys.argv[1:]


def run(*arguments, cache="off", isa="", prepare=None, program=PROGRAM):
    environment = {**os.environ, "MEZZO_CACHE": str(cache), "MEZZO_ISA": isa}
    return subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, preexec_fn=prepare, timeout=120)


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def table(output):
    return output.split("Kernels of matrix products")[1].split("\n")[1:-1] if "Kernels of matrix products" in output else []


def deny_arch_prctl():
    """A sandbox that refuses arch_prctl, and with it tile registers, by a seccomp filter."""
    def statement(code, jump_true, jump_false, value):
        return struct.pack("HBBI", code, jump_true, jump_false, value)
    number_of_arch_prctl, request_permission = 158, 0x1023
    program = b"".join([
        statement(0x20, 0, 0, 0),  # load the number of the call
        statement(0x15, 0, 3, number_of_arch_prctl),
        statement(0x20, 0, 0, 16),  # its first argument
        statement(0x15, 0, 1, request_permission),
        statement(0x06, 0, 0, 0x00050001),  # error EPERM
        statement(0x06, 0, 0, 0x7fff0000),  # allowed
    ])
    library = ctypes.CDLL(None)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))
    if library.prctl(38, 1, 0, 0, 0) != 0 or library.prctl(22, 2, header, 0, 0) != 0:
        os._exit(77)  # no filters here


def fnv(text):
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"{value:016x}"


def sealed(lines):
    """A file of choices with its checksum."""
    text = "".join(line + "\n" for line in lines)
    return text + f"end {fnv(text)}\n"


def check_died(folder, path):
    """Kernels in whose check an earlier process has died are not used until they are measured again."""
    identity, *choices = path.read_text().split("\n")
    kinds = [line.split()[0] for line in choices if line.endswith(" bfloat16: passed")]
    check(kinds, f"a table, but nothing has passed: {choices}")
    for kind in kinds:
        path.write_text(sealed([identity, f"bfloat16 NN 16 x 16 x 32: {kind}; {kind} 1"]))
        mark = folder / f"gemm-cpu-{fnv(f'{identity}{chr(10)}{kind} bfloat16')}.begun"
        mark.write_text(f"{identity}\n{kind} bfloat16\n")
        check(not table(run(cache=folder).stdout), f"{kind}: what an earlier process has died in is not used")
        check(not mark.exists() and f"{kind} bfloat16: not used; an earlier process" in path.read_text(), f"{kind}: and this is remembered")
        check(not table(run(cache=folder).stdout), f"{kind}: by all processes")
        check(run("--measure", cache=folder).returncode == 0 and f"{kind} bfloat16: passed" in path.read_text(), f"{kind}: until it is measured")


def check_cache(folder):
    """The second process reads what the first has measured."""
    folder.mkdir()
    (folder / "gemm-cpu.txt").write_text("mezzo 0.1.0, matrix products 1\n")  # of an older build
    first = run("--measure", cache=folder)
    check(first.returncode == 0, f"--measure: {first.stderr}")
    files = list(folder.glob("gemm-cpu-*.txt"))
    if not table(first.stdout):
        check(not files, "nothing to choose, nothing kept")
        return
    path = files[0]
    kept = path.read_text()
    second = run(cache=folder)
    check(table(second.stdout) == table(first.stdout), "the second process knows what the first has measured")
    check(path.read_text() == kept, "and measures nothing")
    lines = kept.split("\n")
    for damaged in ("", "\n" * 5, "\0\xff", kept[:len(kept) // 2], lines[0] + "\n", kept.replace("mezzo", "other"),
                    sealed([lines[0], "bfloat16 NN 16 x 16 x 32: nothing; vectors 1", ": ; ", "x" * 100000])):
        path.write_text(damaged)
        result = run(cache=folder)
        check(result.returncode == 0 and "nothing" not in result.stdout, f"a damaged file: {damaged[:50]!r}")
    path.write_text(kept)
    check_died(folder, path)
    path.unlink()
    os.mkfifo(path)
    check(run(cache=folder).returncode == 0, "a pipe in place of the file")
    path.unlink()
    check(run("--measure", cache="/dev/null/x").returncode == 0, "a folder that cannot be made")
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    check(run("--measure", cache=folder).returncode == 0, "a folder that cannot be written to")
    folder.chmod(stat.S_IRWXU)


def fast_paths(result):
    """The results that were printed, by path."""
    check(result.returncode == 0 and "\nFast paths of emulated CUDA device\n" in result.stdout, f"--device cuda: {result}")
    lines = result.stdout.split("Fast paths of emulated CUDA device\n")[1].rstrip("\n").split("\n")
    return {line[:44].rstrip(): line[46:] for line in lines}


def check_fast_paths(folder):
    """What a device has checked, and what it has not, with the stored reason."""
    def results(*arguments):
        return fast_paths(run("--device", "cuda", *arguments, cache=folder, program=EMULATED))
    check("Fast paths" not in run(program=EMULATED).stdout, "no results unless asked for")
    check(set(results().values()) == {"not checked yet"}, "a new machine has checked nothing")
    check(not list(folder.glob("fast-paths-*")), "and printing runs no check")
    checked = results("--self-check")
    check(len(checked) > 20 and set(checked.values()) == {"passed"}, f"--self-check: {checked}")
    check(results() == checked, "the next process knows them")
    check(not list(folder.glob("*.begun")), "no marks are left")
    check(run("--device", "cuda:7", program=EMULATED).returncode == 1, "a device that is not there")
    check(run("--self-check", program=EMULATED).returncode == 2, "--self-check of no device")


def check_self_test():
    """Nine lines a device, all of them right; the emulated one is a second device."""
    for program, devices in ((PROGRAM, 1), (EMULATED, 2)):
        result = run("--self-test", program=program)
        lines = [line for line in result.stdout.split("\n") if line[22:24] == "ok"]
        check(result.returncode == 0 and "FAILED" not in result.stdout, f"--self-test: {result.stdout}{result.stderr}")
        check(result.stdout.count("\nSelf-test of ") >= devices and len(lines) == 9 * result.stdout.count("\nSelf-test of "), f"--self-test: {result.stdout}")


def main():
    plain = run()
    for words in ("compiler   ", "backends         CPU", "image files      ", "processes        "):
        check(f"\n{words}" in plain.stdout, f"{words.strip()} of the build: {plain.stdout}")
    check("backends         CPU, CUDA\n" in run(program=EMULATED).stdout, "the emulated build has CUDA")
    check_self_test()
    check(plain.returncode == 0 and plain.stdout.startswith("mezzo "), plain.stderr)
    check("cache folder     none" in plain.stdout, "MEZZO_CACHE=off")
    forced = run("--measure", isa="portable")
    check("portable (forced)" in forced.stdout and not table(forced.stdout), "a forced instruction set leaves no choice")
    check(run("--unknown").returncode == 2, "an unknown option")
    with open("/dev/full", "w") as full:
        check(subprocess.run([PROGRAM], stdout=full, stderr=subprocess.DEVNULL).returncode == 1, "standard output on a full device")
    with tempfile.TemporaryDirectory() as name:
        check_cache(pathlib.Path(name) / "cache")
        check_fast_paths(pathlib.Path(name) / "other cache")
    if "AMX tiles        yes" in plain.stdout:
        refused = run("--measure", prepare=deny_arch_prctl)
        if refused.returncode != 77:
            check(refused.returncode == 0 and "does not grant" in refused.stdout, f"refused tiles: {refused.stdout}{refused.stderr}")
            check(not any(", tiles" in line for line in table(refused.stdout)), "no tiles where they are refused")


main()
