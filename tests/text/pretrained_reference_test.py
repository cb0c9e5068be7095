#!/usr/bin/env python3
"""tools/tokenize with the tokenizers of tests/reference/tokenizers: ids, pairs and decoded texts are those of the reference, and so is
the tokenizer that it learns. A kind that needs PCRE2 may be refused by a build without it. Usage: pretrained_reference_test.py TOKENIZE FOLDER"""
import json
import pathlib
import subprocess
import sys

TOKENIZE, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
NEEDS_PCRE2 = {"o200k"}


def run(path, lines, *flags):
    text = "".join(line + "\n" for line in lines).encode()
    result = subprocess.run([TOKENIZE, "--tokenizer", path, *flags], input=text, capture_output=True, timeout=100, check=False)
    if result.returncode != 0:
        return result.stderr.decode()
    return result.stdout.decode().split("\n")[:-1]


def compare(what, lines, mine, theirs):
    different = [i for i in range(len(lines)) if mine[i:i + 1] != [theirs[i]]]
    for i in different[:3]:
        print(f"  {what} of {lines[i]!r}:\n    mezzo     {mine[i:i + 1]}\n    reference {theirs[i]}")
    return len(different)


def learned_differences(lines):
    """What learn_bpe() makes of the lines, beside the reference's tokens and merges."""
    text = "".join(line + "\n" for line in lines * 3).encode()
    mine = json.loads(subprocess.run([TOKENIZE, "--learn-bpe", "420"], input=text, capture_output=True, timeout=100, check=True).stdout)
    reference = json.loads((FOLDER / "learned.json").read_text(encoding="utf-8"))
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in reference["model"]["merges"]]
    return [what for what, same in (("vocabulary", mine["model"]["vocab"] == reference["model"]["vocab"]),
                                    ("merges", mine["model"]["merges"] == merges),
                                    ("special tokens", mine["added_tokens"] == reference["added_tokens"])) if not same]


def main():
    expected = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
    lines = expected["lines"]
    pairs = list(zip(lines, lines[1:]))
    failures = 0
    for path in sorted(FOLDER.glob("*.json")):
        name = path.stem
        if name == "expected":
            continue
        ids = run(path, lines)
        if isinstance(ids, str):
            known = name in NEEDS_PCRE2 and "needs PCRE2" in ids
            failures += not known
            print(f"{'ok    ' if known else 'FAILED'} {name}: {ids.strip()}")
            continue
        want = expected[name]
        paired = run(path, [line for pair in pairs for line in pair], "--pairs", "--types")
        different = compare("ids", lines, [list(map(int, row.split())) for row in ids], want["ids"])
        different += compare("pair", pairs, [[int(n) for n in row.replace(":", " ").split()] for row in paired], want["pairs"])
        different += compare("decoded text", lines, run(path, lines, "--decode"), want["decoded"])
        failures += different > 0
        print(f"{'FAILED' if different else 'ok    '} {name}: {different} differences in {len(lines)} lines")
    different = learned_differences(lines)
    failures += bool(different)
    print(f"{'FAILED' if different else 'ok    '} learn_bpe: {different or 'the tokens and merges of the reference'}")
    sys.exit(1 if failures else 0)


main()
