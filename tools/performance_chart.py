#!/usr/bin/env python3
"""Draws the pictures of docs/internals/benchmarks.md from its tables of measured training steps.

    tools/performance_chart.py docs/internals/benchmarks.md --out docs/internals"""
import argparse
import collections
import pathlib
import re
import sys

from chart import COLOURS, STYLE, text

# The section whose first table of steps is drawn, the columns beside mezzo's, the rows, and the picture.
Chart = collections.namedtuple("Chart", "file section columns wanted title")
CHARTS = [
    Chart("performance_amx.svg", "Results: two cores with AMX", ["PyTorch 2.15"], None, "Milliseconds per step, two cores with AMX"),
    Chart("performance_avx512.svg", "Results: two cores with AVX-512 and AVX-512 BF16", ["PyTorch 2.15", "PyTorch 1.13"],
          ("mlp1024", "bert6"), "Milliseconds per step, two cores with AVX-512"),
    Chart("performance_resnet.svg", "Training steps of ResNets", ["PyTorch, channels_last"], ("resnet50", "resnet20"),
          "Milliseconds per step, residual networks"),
]
WIDTH, LEFT, RIGHT, LABEL, BAR, GAP, TOP = 460, 16, 90, 18, 16, 12, 96  # narrow, so that a phone shows readable letters


def cells(line):
    return [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]


def median(cell):
    """The number with which a cell begins, as in "6.28 (5.69)"; None where nothing was measured."""
    match = re.match(r"[\d.]+", cell)
    return float(match.group()) if match else None


def rows_of(document, chart):
    """(label, [mezzo, other, ...]) of the first table with a column "mezzo" and "threads" below the heading."""
    section = re.search(rf"^#+ {re.escape(chart.section)}\n(.*?)(?=^## |\Z)", document, re.M | re.S)
    for head, body in re.findall(r"^(\|.*)\n\|[ -|]+\n((?:\|.*\n?)+)", section.group(1) if section else "", re.M):
        names = cells(head)
        if {"mezzo", "threads", *chart.columns} <= set(names):
            rows = [dict(zip(names, cells(line))) for line in body.splitlines()]
            case = names[0]
            return [(f"{row[case]}, {row['precision']}, {row['threads']} thread" + "s" * (row["threads"] != "1"),
                     [median(row[name]) for name in ["mezzo", *chart.columns]])
                    for row in rows if chart.wanted is None or row[case] in chart.wanted]
    return []


def picture(chart, rows):
    """Bars in groups of a row each; every row has a scale of its own, that of its longest bar, since steps differ by a factor of a hundred."""
    series = ["mezzo", *chart.columns]
    parts = [text(LEFT, 30, chart.title, "start", 17, font_weight="bold"),
             text(LEFT, 50, "medians; shorter is better; bars of one group share a scale", "start", 13)]
    x = LEFT
    for i, name in enumerate(series):
        parts.append(f'<circle cx="{x + 6}" cy="66" r="6" fill="{COLOURS[i]}"/>')
        parts.append(text(x + 18, 70, name, "start", 13))
        x += 40 + 8 * len(name)
    y = TOP
    for label, values in rows:
        measured = [(i, value) for i, value in enumerate(values) if value is not None]
        longest = max(value for _, value in measured)
        parts.append(text(LEFT, y + LABEL - 5, label, "start", 13))
        y += LABEL
        for i, value in measured:
            width = value / longest * (WIDTH - LEFT - RIGHT)
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" fill="{COLOURS[i]}"/>')
            parts.append(text(LEFT + width + 6, y + BAR - 5, f"{value:g} ms", "start", 13))
            y += BAR
        y += GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}">'
    return "\n".join([head, f"<style>{STYLE}</style>", f'<path d="M0 0h{WIDTH}v{y}H0z" fill="#fff"/>', *parts, "</svg>"]) + "\n"


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("document", type=pathlib.Path)
    options.add_argument("--out", type=pathlib.Path, required=True, help="the folder of the pictures")
    args = options.parse_args()
    document, missing = args.document.read_text(encoding="utf-8"), []
    for chart in CHARTS:
        if rows := rows_of(document, chart):
            (args.out / chart.file).write_text(picture(chart, rows), encoding="utf-8")
        else:
            missing.append(chart.section)
    if missing:
        sys.exit(f"performance_chart: no table of steps below: {', '.join(missing)}")


main()
