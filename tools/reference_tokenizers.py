#!/usr/bin/env python3
"""Writes tests/reference/tokenizers: small tokenizers of each kind, trained by Hugging Face's `tokenizers` on the project's own
documents, and what it makes of lines that are hard to get right. Needs the packages tokenizers and sentencepiece.

  tools/reference_tokenizers.py tests/reference/tokenizers
"""
import json
import os
import pathlib
import sys
import tempfile

import tokenizer_kinds
import tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINES = [
    "", " ", "  ", "a", " a", "a ", "  a  b  ", "\t", "a\tb", "a\rb\r", "\u00a0", "a\u00a0b", "\u2003x\u3000y", "x\u0085y", "x\u200by",
    "Hello, world!", "Hello,world", "HELLO World", "it's we'll I'd they've you're I'm can't", "IT'S WE'LL", "it'\u017f 'S's", "' 's '",
    "3", "12", "123", "1234", "12345678", "3.14 1,000 x2y", "\u00bd \u00b2 \u2167 \u0663\u0664 \u0967", "a1b22c333", "!!! ... ??? --",
    "a.b,c;d", "(a) [b] {c} <d>", "$5 + 5% = #1 @you ^_^", "`` quoted ''", "e-mail: a@b.org http://x.y/z?q=1", "snake_case CamelCase",
    "caf\u00e9 cafe\u0301 Caf\u00e9   Caf\u00c9", "\u212b \u00c5 A\u030a", "\u0130stanbul \u0131", "\u03a3\u03b1\u03c2 \u03a3", "stra\u00dfe \ufb01n \ufb00",
    "a\u0301\u0323 a\u0323\u0301", "\u0344 \u0958 \u1e9b\u0323", "\ufdfa", "\uff28\uff45\uff4c\uff4c\uff4f \u2460 \u33a5", "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab",
    "\u6211\u60f3\u5728apple\u5de5\u4f5c", "\u3053\u3093\u306b\u3061\u306f \u30ab\u30bf\u30ab\u30ca \uff76\uff9e", "\u0939\u093f\u0928\u094d\u0926\u0940 \u0915\u094d\u0937\u093f",
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u0645\u0631\u062d\u0628\u0627\u064b", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\U0001f600", "\U0001f600\U0001f600 x", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd ok", "\u2764\ufe0f",
    "\u24b6b \U0001f170x", "\x01\x02a\x7fb", "a\x00b", "\ufeffa", "\ufffd", "a\ufffdb", "\U000f0000", "\u0378", "\u2581a \u2581", "\u0120a", "a\u0120",
    "a" * 65, "ab" * 40, "x" * 101, " " * 20, " " * 20 + "a", "a" + " " * 5 + "b", "!" * 30, "\u00e9" * 40, "\U0001f600" * 20, "9" * 31,
    "<s>a</s>", "a <mask> b", "a<mask>b", "  <mask>  ", "<unk>", "<pad>x", "[MASK] [mask] [CLS]", "<|endoftext|>a <|endoftext|>",
    "<0x41>", "new york", "in new york, new yorker", "Caf\u00e9  x", "<|im_start|>user", "<|begin_of_text|>", "the tensor and the gradient",
    "x\u2028y\u2029z", "a\x0bb\x0cc", "a\u1680b", "a\u180eb", "tab\t\ttab", "end ", "  two", "\u201cquotes\u201d \u2018s\u2019 \u2014 \u2026",
]


def documents():
    lines = []
    for path in sorted((ROOT / "docs").glob("*/*.md"), key=lambda page: page.name):
        lines += [line for line in path.read_text(encoding="utf-8").split("\n") if line and not line.startswith("|")]
    return lines[:1500]


def main():
    target = pathlib.Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    text = documents() + LINES * 2
    with tempfile.TemporaryDirectory() as folder:
        rules = os.path.join(folder, "rules.tsv")
        with open(rules, "w", encoding="utf-8") as file:
            file.write("FB01\t66 69\nE9\t65 301\n65 301\t65\n2460\t31\n3000\t20\n")
        charsmap = tokenizer_kinds.charsmap_of(text, folder, normalization_rule_tsv=rules)
    kinds = dict(tokenizer_kinds.KINDS, t5=lambda lines, size: tokenizer_kinds.t5(lines, size, charsmap))
    # What data::learn_bpe() has to learn from the lines.
    kinds["learned"] = lambda _, size: tokenizer_kinds.byte_level(LINES * 3, size, ["<|endoftext|>"])
    expected = {"written by": f"tools/reference_tokenizers.py with tokenizers {tokenizers.__version__}", "lines": LINES}
    for name, train in kinds.items():
        tokenizer = train(text, 620 if name == "llama2" else 420)
        tokenizer.save(str(target / f"{name}.json"), pretty=False)
        encodings = tokenizer.encode_batch(LINES)
        pairs = tokenizer.encode_batch(list(zip(LINES, LINES[1:])))
        expected[name] = {"ids": [e.ids for e in encodings], "decoded": [tokenizer.decode(e.ids) for e in encodings],
                          "pairs": [sum(zip(e.ids, e.type_ids), ()) for e in pairs]}
    text = json.dumps(expected, ensure_ascii=True, separators=(",", ":"))
    (target / "expected.json").write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")


main()
