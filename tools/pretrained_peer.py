#!/usr/bin/env python3
"""Compares tools/tokenize with Hugging Face's `tokenizers`: trains a tokenizer of each kind on lines of files, saves it, and compares
ids, offsets, pairs and decoded texts over all lines and over random ones, and with --time the speed of both on one thread. Exits with 1 if ids,
pairs or decoded texts differ. Needs the packages tokenizers and sentencepiece.

  tools/pretrained_peer.py [--program build/tools/tokenize] [--size 8000] [--train N] [--random N] [--kind NAME ...] [--time] FILE...
"""
import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time

os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
import tokenizer_kinds  # noqa: E402  after the variables that it reads
from ranges import number  # noqa: E402


def ours(options, path, lines, *flags):
    command = [options.program, "--tokenizer", path] + list(flags)
    out = subprocess.run(command, input="".join(line + "\n" for line in lines).encode(), stdout=subprocess.PIPE, check=True).stdout
    return out.decode().split("\n")[:-1]


def tokens(rows):
    return [[tuple(map(int, token.split(":"))) for token in row.split()] for row in rows]


def bytes_before(line):
    """The byte offset of each character's begin, and of the end."""
    offsets = [0]
    for character in line:
        offsets.append(offsets[-1] + len(character.encode()))
    return offsets


def report(what, lines, mine, theirs):
    """Prints the first differences; returns how many there are."""
    different = [i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b]
    for i in different[:3]:
        print(f"    {what}: {lines[i]!r}\n      mezzo     {mine[i]}\n      reference {theirs[i]}")
    return len(different)


def compare(options, name, tokenizer, path, lines):
    encodings = tokenizer.encode_batch(lines)
    mine = tokens(ours(options, path, lines, "--offsets"))
    theirs = []
    for line, encoding in zip(lines, encodings, strict=True):
        at = bytes_before(line)
        theirs.append([(i, at[begin], at[end]) for i, (begin, end) in zip(encoding.ids, encoding.offsets)])
    ids = report("ids", lines, [[t[0] for t in row] for row in mine], [[t[0] for t in row] for row in theirs])
    offsets = sum(a != b for a, b in zip(mine, theirs))
    pairs = list(zip(lines[::2], lines[1::2]))
    their_pairs = [list(zip(e.ids, e.type_ids)) for e in tokenizer.encode_batch(pairs)]
    paired = report("pairs", pairs, tokens(ours(options, path, lines, "--pairs", "--types"))[:len(pairs)], their_pairs)
    decoded = report("decoded", lines, ours(options, path, lines, "--decode"), [tokenizer.decode(e.ids) for e in encodings])
    print(f"{name}: {len(lines)} lines, {sum(len(e.ids) for e in encodings)} tokens: other ids {ids}, other offsets {offsets}, "
          f"other pairs {paired} of {len(pairs)}, other decoded texts {decoded}")
    return ids + paired + decoded


def random_lines(count):
    """Mixtures of what the rules treat differently, of characters that all Unicode tables of use know alike."""
    draw = random.Random(0)
    ranges = [(0x20, 0x7E)] * 6 + [
        (0, 0x9), (0xB, 0xC), (0xE, 0x1F), (0x7F, 0x24F), (0x130, 0x131), (0x17F, 0x17F), (0x300, 0x36F), (0x370, 0x377),
        (0x391, 0x3A1), (0x400, 0x52F), (0x5D0, 0x5EA), (0x900, 0x97F), (0xE01, 0xE3A), (0x1100, 0x11FF), (0x1E00, 0x1EFF),
        (0x2000, 0x206F), (0x2150, 0x218B), (0x24B6, 0x24E9), (0x2581, 0x2581), (0x302A, 0x3030), (0x3041, 0x30FF), (0x4E00, 0x4E20),
        (0xAC00, 0xAC80), (0xF900, 0xF910), (0xFB00, 0xFB06), (0xFF01, 0xFF5E), (0xFFFD, 0xFFFD), (0x1D15E, 0x1D172),
        (0x1F300, 0x1F64F), (0x1F1E6, 0x1F1FF), (0x1F3FB, 0x1F3FF)]
    words = [" ", "  ", "   ", "\t", "\u00a0", "\u3000", "\r", "'s", "'LL", "'re ", "123", "4567", "<s>", "</s>", "<mask>", " <mask> ",
             "[MASK]", "<unk>", "<|endoftext|>", "<0x41>", "new york", "Café ", "``", "the ", " and", "▁the", "\u200d", "\ufe0f",
             "a" * 70]
    lines = []
    for _ in range(count):
        parts = [draw.choice(words) if draw.random() < 0.3 else chr(draw.randint(*draw.choice(ranges)))
                 for _ in range(draw.randint(0, 30))]
        lines.append("".join(parts))
    return lines


def measure(options, name, tokenizer, path, lines):
    out = ours(options, path, lines, "--time")[0]
    single, batch = (float(s) for s in re.findall(r"([0-9.]+) s,", out))

    def best(run):
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    by_line, at_once = best(lambda: [tokenizer.encode(line) for line in lines]), best(lambda: tokenizer.encode_batch(lines))
    print(f"{name}: lines/s on one thread, line by line: mezzo {len(lines) / single:.0f}, reference {len(lines) / by_line:.0f} "
          f"({by_line / single:.1f} times); batch: mezzo {len(lines) / batch:.0f}, reference {len(lines) / at_once:.0f} "
          f"({at_once / batch:.1f} times)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/tools/tokenize")
    parser.add_argument("--size", type=number(int, 300, 1 << 20), default=8000, help="tokens of a vocabulary")
    parser.add_argument("--train", type=number(int, 1, 1 << 32), default=20000, metavar="N", help="lines to train on, at most")
    parser.add_argument("--random", type=number(int, 0, 1 << 32), default=2000, metavar="N", help="random lines")
    parser.add_argument("--kind", action="append", choices=[*tokenizer_kinds.KINDS, "t5"], help="only these")
    parser.add_argument("--time", action="store_true", help="also measure the speed of both")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    lines = []
    for path in options.files:
        with open(path, encoding="utf-8", newline="\n") as file:
            lines += file.read().removesuffix("\n").split("\n")
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        kinds = dict(tokenizer_kinds.KINDS, t5=lambda text, size: tokenizer_kinds.t5(
            text, size, tokenizer_kinds.charsmap_of(text, folder, normalization_rule_name="nmt_nfkc")))
        for name in options.kind or kinds:
            tokenizer = kinds[name](lines[:options.train], options.size)
            path = os.path.join(folder, name + ".json")
            tokenizer.save(path)
            failures += compare(options, name, tokenizer, path, lines)
            failures += compare(options, name + ", random lines", tokenizer, path, random_lines(options.random))
            if options.time:
                measure(options, name, tokenizer, path, lines)
    sys.exit(1 if failures else 0)


main()
