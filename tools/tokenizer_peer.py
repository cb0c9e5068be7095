#!/usr/bin/env python3
"""Compares tools/tokenize with the WordPiece tokenizers of Python: ids and offsets over the lines of files, ids over the golden
vectors of bert-base-uncased when the vocabulary is that one, over random lines, and over every Unicode character. Then times all
on one thread. Exits with 1 if a difference is found that docs/guide/text.md does not name.

  tools/tokenizer_peer.py --vocab vocab.txt [--program build/tools/tokenize] [--cased] [--characters] [--random N] FILE...
"""
import argparse
import os
import random
import re
import subprocess
import sys
import time
import unicodedata
from ranges import number

os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1", TRANSFORMERS_VERBOSITY="error")

# Texts and ids of bert-base-uncased, from llama.cpp (models/ggml-vocab-bert-bge.gguf.inp and .out, MIT).
GOLDEN = [
    ("Hello, world!", "7592 1010 2088 999"),
    ("Führer", "11865 17875"),
    (" this is 🦙.cpp", "2023 2003 100 1012 18133 2361"),
    ("w048 7tuijk dsdfhu", "1059 2692 18139 1021 8525 28418 2243 16233 20952 6979"),
    ("ied 4 ½ months", "29464 2094 1018 1092 2706"),
    ("Hello, y'all! How are you 😁 ?我想在apple工作1314151天～",
     "7592 1010 1061 1005 2035 999 2129 2024 2017 100 1029 1855 100 100 6207 100 100 14677 23632 22203 1811 1995"),
    ("333333333", "21211 22394 22394 22394"),
]
# Where the peer's CJK range has another first digit than BERT's, so that it keeps these ideographs together.
KNOWN = re.compile("[\U0002b820-\U0002b91f]")


def ours(options, text, *flags):
    """One list of (id, begin, end) a line."""
    command = [options.program, "--vocab", options.vocab, "--max-length", str(options.max_length), "--offsets"] + list(flags)
    command += ["--cased"] if options.cased else []
    out = subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, check=True).stdout.decode()
    return [[tuple(map(int, token.split(":"))) for token in line.split()] for line in out.splitlines()]


def peers(options):
    """Name and encoder of each peer that is installed; an encoder turns a list of texts into lists of ids, and maybe offsets."""
    found = {}
    try:
        import tokenizers
        fast = tokenizers.BertWordPieceTokenizer(options.vocab, lowercase=not options.cased)
        if options.max_length:
            fast.enable_truncation(options.max_length)
        found[f"tokenizers {tokenizers.__version__}"] = fast
    except ImportError:
        print("tokenizers is not installed")
    return found


def transformers_tokenizer(options):
    try:
        import transformers
        name = "vocab" if int(transformers.__version__.split(".")[0]) >= 5 else "vocab_file"
        tokenizer = transformers.BertTokenizer(**{name: options.vocab}, do_lower_case=not options.cased)
        return f"transformers {transformers.__version__}", tokenizer
    except ImportError:
        print("transformers is not installed")
        return None, None


def bytes_before(line):
    """The byte offset of each character's begin, and of the end."""
    offsets = [0]
    for character in line:
        offsets.append(offsets[-1] + len(character.encode()))
    return offsets


def compare(name, lines, mine, theirs, with_offsets):
    """Prints the first differences; returns how many are not known ones."""
    known = different = offsets_differ = 0
    for line, a, b in zip(lines, mine, theirs, strict=True):
        if [token[0] for token in a] != [token[0] for token in b]:
            if KNOWN.search(line):
                known += 1
                continue
            different += 1
            if different <= 5:
                print(f"  {line!r}\n    mezzo {[t[0] for t in a]}\n    {name} {[t[0] for t in b]}")
        elif with_offsets and a != b:
            offsets_differ += 1
            if offsets_differ <= 5:
                print(f"  {line!r}\n    mezzo {a}\n    {name} {b}")
    print(f"{name}: {len(lines)} lines, {different} with other ids, {offsets_differ} with other offsets, "
          f"{known} with the known CJK difference")
    return different + offsets_differ


def compare_lines(options, lines, with_offsets=True):
    failures = 0
    mine = ours(options, "".join(line + "\n" for line in lines))
    for name, fast in peers(options).items():
        theirs = []
        for line, encoding in zip(lines, fast.encode_batch(lines), strict=True):
            at = bytes_before(line)
            theirs.append([(i, at[b], at[e]) for i, (b, e) in zip(encoding.ids, encoding.offsets)])
        failures += compare(name, lines, mine, theirs, with_offsets)
    name, tokenizer = transformers_tokenizer(options)
    if tokenizer:
        limits = {"max_length": options.max_length, "truncation": True} if options.max_length else {}
        ids = tokenizer(lines, **limits)["input_ids"]
        failures += compare(name, lines, mine, [[(i, 0, 0) for i in row] for row in ids], False)
    return failures


def compare_golden(options):
    got = ours(options, "".join(text + "\n" for text, _ in GOLDEN), "--no-special")
    failures = 0
    for (text, expected), tokens in zip(GOLDEN, got, strict=True):
        if " ".join(str(token[0]) for token in tokens) != expected:
            failures += 1
            print(f"golden vector: {text!r} gives {[t[0] for t in tokens]}, not {expected}")
    print(f"golden vectors: {len(GOLDEN) - failures} of {len(GOLDEN)}")
    return failures


def compare_characters(options):
    """Every character alone and between letters: differences by category; most come from the age of the Unicode tables."""
    characters = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000 and c not in (10, 13)]
    lines = characters + ["a" + c + "b" for c in characters]
    mine = ours(options, "".join(line + "\n" for line in lines))
    for name, fast in peers(options).items():
        counts = {}
        for line, a, encoding in zip(lines, mine, fast.encode_batch(lines), strict=True):
            if [token[0] for token in a] != encoding.ids:
                character = line if len(line) == 1 else line[1]
                category = unicodedata.category(character)
                kind = "known CJK" if KNOWN.search(line) else category
                counts.setdefault(kind, set()).add(character)
        print(f"{name}: characters with other ids by category of Unicode {unicodedata.unidata_version}: "
              + (", ".join(f"{k} {len(v)} (first U+{ord(min(v)):04X})" for k, v in sorted(counts.items())) or "none"))


def random_lines(count):
    """Mixtures of what the rules treat differently, of characters that all Unicode tables of use know alike."""
    draw = random.Random(0)
    ranges = [(0x20, 0x7E)] * 6 + [
        (0, 0x9), (0xE, 0x1F), (0x7F, 0x24F), (0x130, 0x131), (0x300, 0x36F), (0x340, 0x344), (0x370, 0x377), (0x391, 0x3A1),
        (0x400, 0x52F), (0x5D0, 0x5EA), (0x900, 0x97F), (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x1FE0, 0x1FEF), (0x2000, 0x206F),
        (0x302A, 0x3030), (0x3041, 0x30FF), (0x4E00, 0x4E20), (0xAC00, 0xAC80), (0xE000, 0xE004), (0xF900, 0xF910),
        (0xFF01, 0xFF5E), (0xFFFD, 0xFFFD), (0x1D15E, 0x1D172), (0x1F600, 0x1F64F), (0x2F800, 0x2F810)]
    words = ["[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[mask]", "[", "the", "##ing", "unaffable", "a" * 101, "ü" * 100, "\t"]
    lines = []
    for _ in range(count):
        parts = []
        for _ in range(draw.randint(0, 30)):
            parts.append(draw.choice(words) if draw.random() < 0.2 else chr(draw.randint(*draw.choice(ranges))))
        lines.append("".join(parts).replace("\n", "").replace("\r", ""))
    return lines


def measure(options, lines):
    text = "".join(line + "\n" for line in lines).encode()
    command = [options.program, "--vocab", options.vocab, "--max-length", str(options.max_length), "--time"]
    command += ["--cased"] if options.cased else []
    out = subprocess.run(command, input=text, stdout=subprocess.PIPE, check=True).stdout.decode().strip()
    print("mezzo:", out)
    single, batch = (float(s) for s in re.findall(r"([0-9.]+) s,", out))

    def best(run):
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    encoders = [(name, fast.encode, fast.encode_batch) for name, fast in peers(options).items()]
    name, tokenizer = transformers_tokenizer(options)
    if tokenizer:
        encoders.append((name, tokenizer, tokenizer))
    for name, one, many in encoders:
        by_line, at_once = best(lambda: [one(line) for line in lines]), best(lambda: many(lines))
        print(f"{name}: line by line {by_line:.3f} s ({by_line / single:.1f} times mezzo), "
              f"batch {at_once:.3f} s ({at_once / batch:.1f} times mezzo)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/tools/tokenize")
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--max-length", type=number(int, 0, 1 << 32), default=512)
    parser.add_argument("--cased", action="store_true", help="keep upper case and accents")
    parser.add_argument("--characters", action="store_true", help="also compare every Unicode character")
    parser.add_argument("--random", type=number(int, 0, 1 << 32), default=0, metavar="N", help="also compare N random lines")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    lines = []
    for path in options.files:
        with open(path, encoding="utf-8", newline="\n") as file:
            lines += file.read().removesuffix("\n").split("\n")
    failures = compare_lines(options, lines)
    with open(options.vocab, encoding="utf-8", newline="\n") as file:
        if file.read().count("\n") == 30522 and not options.cased:
            failures += compare_golden(options)
    if options.random:
        failures += compare_lines(options, random_lines(options.random), with_offsets=False)
    if options.characters:
        compare_characters(options)
    measure(options, lines)
    sys.exit(1 if failures else 0)


main()
