#!/usr/bin/env python3
"""tools/tokenize: numbers of threads that cannot be had, and inputs that are no files. Usage: tokenize_test.py TOKENIZE"""
import os
import resource
import subprocess
import sys
import tempfile

TOKENIZE = sys.argv[1]
failures = 0


def expect(what, good, text=""):
    global failures
    failures += not good
    print(f"{'ok    ' if good else 'FAILED'} {what}{'' if good else ': ' + text}")


def run(arguments, stdin=b"", memory=None):
    """Ends after 60 s at the latest; memory: bytes of address space."""
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    return subprocess.run([TOKENIZE] + arguments, input=stdin, capture_output=True, timeout=60, check=False,
                          preexec_fn=limit if memory else None)


def main():
    with tempfile.TemporaryDirectory() as folder:
        vocab = os.path.join(folder, "vocab.txt")
        with open(vocab, "w", encoding="utf-8") as file:
            file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "##b", ""]))
        texts = b"a b ab\nabb\n" * 500
        plain = run(["--vocab", vocab, "--threads", "1"], texts)
        expect("tokens of standard input", plain.returncode == 0 and plain.stdout.startswith(b"2 4 5 4 6 3\n2 4 6 6 3\n"),
               repr(plain.stdout[:50]))

        for threads in ("0", "-1", "1025", "1048576"):
            result = run(["--vocab", vocab, f"--threads={threads}"], texts)
            expect(f"--threads {threads} is refused in words",
                   result.returncode == 2 and b"from 1 to 1024" in result.stderr, repr(result.stderr))
        # Each thread takes some MB of address space: here is room for a few of them, or for none. What they leave may be too
        # little for the rest, and is said to be.
        for megabytes in (60, 100, 200):
            result = run(["--vocab", vocab, "--threads", "500"], texts, megabytes << 20)
            same = result.returncode == 0 and result.stdout == plain.stdout
            expect(f"500 threads in {megabytes} MB give the same tokens, or an error",
                   same or (result.returncode, result.stderr) == (1, b"tokenize: std::bad_alloc\n"),
                   f"{result.returncode} {result.stderr!r}")

        pipe = os.path.join(folder, "pipe")
        os.mkfifo(pipe)
        for name, text in ((pipe, b"named pipe"), (folder, b"cannot be read"), (folder + "/absent", b"cannot be read")):
            result = run(["--vocab", vocab, name])
            expect(f"{os.path.basename(name)} as the text is refused", result.returncode == 1 and text in result.stderr,
                   repr(result.stderr))
        result = run(["--vocab", pipe])
        expect("a pipe as the vocabulary is refused", result.returncode == 1 and b"named pipe" in result.stderr,
               repr(result.stderr))
    sys.exit(1 if failures else 0)


main()
