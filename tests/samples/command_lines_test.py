#!/usr/bin/env python3
"""Every option of every program that takes a number, with numbers outside of its range: each is refused at once, with the option's name
and the range. Every program takes options from a file, and says so when its output cannot be written.
docs/reference/programs.md lists these promises.

    command_lines_test.py PROGRAM...
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from checks import check, finish  # noqa: E402

BAD = ("nan", "inf", "-inf", "-1", "-0.5", "1e400", "18446744073709551616", "-9223372036854775809", "many", "1x", " ", "0x10", "1e3 ", "+-1")


POSITIONALS_BEFORE = {"seconds": ["1"]}
# How many options with numbers a program has at least, where that is not 2.
FEW_OPTIONS = {"bench_isa": 1, "bench_ops": 1, "parameter_hashes": 1, "time_gemm": 1, "gemm_errors": 0, "op_database": 0, "port_parity": 1}


def run(*command, **options):
    return subprocess.run([str(c) for c in command], capture_output="stdout" not in options, text=True, stdin=subprocess.DEVNULL,
                          timeout=60, **options)


def options_of(program):
    """(name, type, lowest, highest) of the options and positionals that take a number, from the help; the last two None: no range."""
    text = run(program, "--help").stdout
    pattern = r"^  (-[-\w,]*|\w+) (U?INT|FLOAT)(?::from (\S+) to ([^\s=]+))?(?=[=\s])"
    return [(m[1].split(",")[-1], m[2], m[3], m[4]) for m in re.finditer(pattern, text, re.M)]


def allowed(value, kind, low, high):
    try:
        return float(low) <= (float(value) if kind == "FLOAT" else int(value)) <= float(high) and value == value.strip()
    except ValueError:
        return False


def needed(program, folder):
    """What a program insists on besides."""
    return {"train_csv": ["--data", folder / "none", "--target", "none"], "tokenize": ["--vocab", folder / "none"], "bert_parity": [folder], "gpt_parity": [folder], "resnet_parity": [folder], "op_database": [folder], "port_parity": [folder]}.get(program.name, [])


def refuses(program, name, kind, low, high, value, folder):
    given = [f"{name}={value}"] if name.startswith("-") else ["--", *POSITIONALS_BEFORE.get(name, []), value]
    result = run(program, *needed(program, folder), *given)
    said = result.stderr.split("\n")[0]
    where = f"{program.name} {name} '{value}'"
    return [f"{where}: {what}: exit code {result.returncode}, {result.stdout}{result.stderr}" for what, good in (
        ("is accepted", result.returncode == 2), ("no name", said.startswith(f"{name}:")),
        ("no range", f"from {low} to {high}" in said)) if not good]


def test_numbers(programs, folder):
    cases, count = [], 0
    for program in programs:
        found = options_of(program)
        check(len(found) >= FEW_OPTIONS.get(program.name, 2), f"{program.name}: the help names {len(found)} options with numbers")
        for name, kind, low, high in found:
            check(low is not None, f"{program.name} {name}: takes any {kind}")
            if low is None:
                continue
            above = repr(float(high) * 1.01) if kind == "FLOAT" else str(int(high) + 1)
            below = repr(float(low) - 0.01) if kind == "FLOAT" else str(int(low) - 1)
            for value in (*BAD, above, below):
                if not allowed(value, kind, low, high):
                    cases.append((program, name, kind, low, high, value, folder))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda case: refuses(*case), cases):
            count += 1
            for text in found:
                check(False, text)
    print(f"{count} numbers out of range")
    check(count > 10 * len(programs), "too few cases")


def test_full_device(programs, folder):
    """Standard output on a full device is an error, for the help and for results."""
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n", encoding="utf-8")
    text = folder / "text.txt"
    text.write_text("hello world\n", encoding="utf-8")
    work = {
        "bench": ["--case", "add_small", "--seconds", 0.001],
        "tokenize": ["--vocab", vocabulary, text],
    }
    for program in programs:
        for arguments in (["--help"], *([work[program.name]] if program.name in work else [])):
            where = f"{program.name} {' '.join(map(str, arguments))} > /dev/full"
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = run(program, *arguments, stdout=full, stderr=subprocess.PIPE)
            check(result.returncode == 1, f"{where}: exit code {result.returncode}")
            check("No space left on device" in result.stderr and result.stderr.startswith(program.name), f"{where}: {result.stderr}")
            # Nor does a full standard error end the work.
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = run(program, *arguments, stdout=subprocess.DEVNULL, stderr=full)
            check(result.returncode == 0, f"{program.name} 2> /dev/full: exit code {result.returncode}")


def test_unreadable(programs, folder):
    """Folders and files that are not there are named, for the tools that read texts."""
    programs = {program.name: program for program in programs}
    vocabulary, three = folder / "vocab.txt", folder / "three.txt"
    three.write_text("the\nthe\nthe\n", encoding="utf-8")
    for name, arguments, words in (
            ("tokenize", ["--vocab", vocabulary, "--pairs", three], ("--pairs: 3 lines are no pairs",)),
            ("tokenize", ["--vocab", vocabulary, folder], ("Is a directory", str(folder))),
            ("tokenize", ["--vocab", vocabulary, folder / "none"], ("No such file", "none")),
            ("tokenize", ["--vocab", folder, vocabulary], ("a directory", str(folder))),
            ("bert_parity", [vocabulary], ("folder", str(vocabulary))),
            ("bert_parity", ["/proc"], ("/proc", "cannot"))):
        if name not in programs or (name == "bert_parity" and arguments[0] == "/proc" and not pathlib.Path("/proc").is_dir()):
            continue
        result = run(programs[name], *arguments)
        check(result.returncode in (1, 2) and all(word in result.stderr for word in words), f"{name} {arguments}: {result.stderr}")
    if "tokenize" in programs:  # a folder as standard input
        descriptor = os.open(folder, os.O_RDONLY)
        result = subprocess.run([programs["tokenize"], "--vocab", vocabulary], stdin=descriptor, capture_output=True, text=True)
        os.close(descriptor)
        check(result.returncode == 1 and "standard input: cannot be read: Is a directory" in result.stderr, f"standard input: {result}")


# What the help of the training programs has, with these defaults.
COMMON = {"fashion_mnist", "train_csv", "bert_classifier", "gpt", "resnet"}


def test_help(programs):
    """The options that mean the same wherever they are, and defaults."""
    for program in programs:
        text = run(program, "--help").stdout
        names = ["--help", "--config"]
        if program.name in COMMON:
            names += ["--device", "--precision", "--seed", "--threads"]
        for name in names:
            check(re.search(rf"^  (-\w,)?{name}\b", text, re.M), f"{program.name} --help: no {name}")
        for match in re.finditer(r"^  (-[-\w,]*) (?:U?INT|FLOAT)(?::from \S+ to [^\s=]+)?(\S*)( REQUIRED)?", text, re.M):
            check(match[2].startswith("=") or match[3] or (program.name, match[1]) in NO_DEFAULT,
                  f"{program.name} --help: {match[1]} has no default")
        check("\033" not in text, f"{program.name} --help: colours")


# Where the help says in words what happens without the option.
NO_DEFAULT = {("fashion_mnist", "--prefetch"), ("tokenize", "--max-length")}


def test_config_errors(programs, folder):
    """Unknown keys, wrong values and files that cannot be read: exit code 2, and the error names the key or the file."""
    file, absent = folder / "options.toml", folder / "absent.toml"

    def refused(program, text, *words):
        file.write_text(text, encoding="utf-8")
        result = run(program, f"--config={file}", *needed(program, folder))
        first = result.stderr.split("\n")[0]
        check(result.returncode == 2 and all(word in first for word in words), f"{program.name}: {text!r}: {result}")

    def unreadable(program, path):
        result = run(program, f"--config={path}", *needed(program, folder))
        check(result.returncode == 2 and str(path) in result.stderr, f"{program.name} --config={path}: {result}")

    for program in programs:
        refused(program, "no-such-option = 1\n", "no-such-option")
        unreadable(program, absent)
        check(run(program, f"--config={absent}", "--help").returncode == 0, f"{program.name} --help with a file that is not there")
    programs = {program.name: program for program in programs}
    if "fashion_mnist" in programs:
        refused(programs["fashion_mnist"], "[training]\nepochs = 4\n", "training")
        refused(programs["fashion_mnist"], "config = 'other'\n", "config")
        unreadable(programs["fashion_mnist"], folder)
    if "gpt" in programs:
        refused(programs["gpt"], "lr = nan\n", "--lr:", "from 0 to 1000")
        refused(programs["gpt"], "precision = 'fp4'\n", "--precision:", "fp4")
        refused(programs["gpt"], "resume = true\n", "--resume requires --checkpoints")
    if "bert_classifier" in programs:
        refused(programs["bert_classifier"], "pooler = 'perhaps'\n", "pooler")
        refused(programs["bert_classifier"], "resume = true\n", "--resume requires --checkpoints")


def test_config_values(programs, folder):
    """Values come from the file where the command line has none."""
    programs = {program.name: program for program in programs}
    file = folder / "options.toml"
    if "tokenize" in programs:  # a flag, a positional, and an option of a group
        vocabulary = folder / "words.txt"
        vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n", encoding="utf-8")
        text = folder / "line.txt"
        text.write_text("hello\n", encoding="utf-8")
        for vocab, more in ((vocabulary, []), ("/absent", ["--vocab", vocabulary])):
            file.write_text(f"# a trial\nvocab = '{vocab}'\nfile = '{text}'\nno-special = true\n", encoding="utf-8")
            result = run(programs["tokenize"], f"--config={file}", *more)
            check(result.returncode == 0 and result.stdout == "5\n", f"tokenize --config {more}: {result}")


def main():
    programs = [pathlib.Path(p).resolve() for p in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        test_help(programs)
        test_config_errors(programs, folder)
        test_config_values(programs, folder)
        test_numbers(programs, folder)
        test_full_device(programs, folder)
        test_unreadable(programs, folder)
    finish()


main()
