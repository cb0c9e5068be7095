#!/usr/bin/env python3
"""Draws the logs of several training runs into one SVG picture: loss, accuracy by epoch and by time, images per second, peak
memory, and the loss scale with the steps that the scaler skipped. Needs nothing but Python.

    tools/chart.py -o runs.svg fp32=fp32.csv bf16=bf16.csv --title "ResNet-20"

A log is what samples/resnet --log and tools/torch_resnet.py write: CSV with a line of names. A row is of a step or of an epoch, as its
column kind says; without that column, a row with a test accuracy is of an epoch. Columns that are missing or empty leave their curve
out, and the last row may be cut off by a run that still goes on. A run that was killed and resumed has some steps twice: the later row
counts."""
import argparse
import collections
import csv
import math
import pathlib
import statistics
import sys
import xml.sax.saxutils

# Okabe and Ito's colours, which people with any colour vision tell apart; the yellow is too light for lines.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
DASHES = ["", "9 3", "3 3", "9 3 3 3", "12 2 2 2", "14 4", "6 2 2 2 2 2"]
POINTS = 160  # of a curve at most; more are averaged
WIDTH, HEIGHT = 560, 330
MARGIN = {"left": 74, "right": 24, "top": 40, "bottom": 52}
COLUMNS = 2

Run = collections.namedtuple("Run", "label steps epochs")
Panel = collections.namedtuple("Panel", "title draw")


class BadLog(Exception):
    pass


def number(text):
    """A number of a cell; None where it is empty or not finite."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def read_log(label, path):
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise BadLog(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    try:
        rows = list(csv.DictReader(lines))
    except csv.Error as error:
        raise BadLog(f"{path}: is no log of a training run: {error}") from error
    if not rows or "step" not in rows[0]:
        raise BadLog(f"{path}: is no log of a training run: it has {'no column step' if rows else 'no rows'}")
    kinds = {"step": {}, "epoch": {}}
    for place, row in enumerate(rows):
        values = {name: number(text) for name, text in row.items() if name and name != "kind"}
        kind = row.get("kind") or ("epoch" if values.get("test_accuracy") is not None else "step")
        if kind in kinds:
            step = values["step"] if values["step"] is not None else ("row", place)
            kinds[kind].pop(step, None)
            kinds[kind][step] = values
    return Run(label, list(kinds["step"].values()), list(kinds["epoch"].values()))


def points(rows, x, y):
    """(x, y) of the rows that have both."""
    return [(row[x], row[y]) for row in rows if row.get(x) is not None and row.get(y) is not None]


def averaged(curve):
    """At most POINTS points, each the mean of neighbours."""
    size = -(-len(curve) // POINTS)
    parts = [curve[i:i + size] for i in range(0, len(curve), size)] if curve else []
    return [tuple(statistics.fmean(axis) for axis in zip(*part)) for part in parts]


def round_ticks(low, high, wanted=6):
    """Multiples of 1, 2 or 5 times a power of ten that enclose low and high."""
    if high <= low:
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * i for i in range(first, last + 1)]


def shown(value, step=0.0):
    """A tick in as many digits as its step needs."""
    if value != 0 and abs(value) >= 1e6:
        return f"{value / 1e6:g} M"
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 0
    return f"{value:,.{digits}f}".replace("-0" if round(value, digits) == 0 else "\0", "0")


def text(x, y, content, anchor="middle", size=12, **more):
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{attributes}>'
            f"{xml.sax.saxutils.escape(content)}</text>")


class Axes:
    """A panel's frame: from values to places, with ticks and grid."""

    def __init__(self, x_ticks, y_ticks, x_labels, y_labels):
        self.x, self.y, self.x_labels, self.y_labels = x_ticks, y_ticks, x_labels, y_labels
        self.left, self.top = MARGIN["left"], MARGIN["top"]
        self.right, self.bottom = WIDTH - MARGIN["right"], HEIGHT - MARGIN["bottom"]

    def place(self, x, y):
        across = self.left + (x - self.x[0]) / (self.x[-1] - self.x[0]) * (self.right - self.left)
        return across, self.bottom - (y - self.y[0]) / (self.y[-1] - self.y[0]) * (self.bottom - self.top)

    def frame(self, x_name, y_name):
        parts = []
        for value, label in zip(self.y, self.y_labels):  # none for bars
            y = self.place(self.x[0], value)[1]
            parts.append(f'<line class="grid" x1="{self.left}" y1="{y:.1f}" x2="{self.right}" y2="{y:.1f}"/>')
            parts.append(text(self.left - 8, y + 4, label, "end"))
        for value, label in zip(self.x, self.x_labels):
            x = self.place(value, self.y[0])[0]
            parts.append(f'<line class="grid" x1="{x:.1f}" y1="{self.top}" x2="{x:.1f}" y2="{self.bottom}"/>')
            parts.append(text(x, self.bottom + 18, label))
        parts.append(f'<line class="axis" x1="{self.left}" y1="{self.bottom}" x2="{self.right}" y2="{self.bottom}"/>')
        parts.append(text((self.left + self.right) / 2, self.bottom + 38, x_name))
        if y_name:
            middle = (self.top + self.bottom) / 2
            parts.append(text(16, middle, y_name, transform=f"rotate(-90 16 {middle:.1f})"))
        return parts


def linear_labels(ticks):
    return [shown(tick, ticks[1] - ticks[0]) for tick in ticks]


def colour_of(index):
    return COLOURS[index % len(COLOURS)]


def dash_of(index, always=False):
    """The attribute of a run's lines. Dashes tell runs of the same colour apart, and with `always` those of other colours, too."""
    again = index // len(COLOURS)
    dashes = DASHES[(index + again if always else again) % len(DASHES)]
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def line(axes, curve, index, run, dashed=False):
    places = " ".join("{:.1f},{:.1f}".format(*axes.place(x, y)) for x, y in curve)
    if len(curve) == 1:
        x, y = axes.place(*curve[0])
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour_of(index)}"/>'
    return (f'<polyline points="{places}" stroke="{colour_of(index)}"{dash_of(index, dashed)}>'
            f"<title>{xml.sax.saxutils.escape(run.label)}</title></polyline>")


def curves_panel(title, curves, x_name, y_name, y_range=None):
    """curves: one list of points for each run, empty where it has none."""
    every = [point for _, curve in curves for point in curve]
    if not every:
        return None
    xs, ys = [p[0] for p in every], [p[1] for p in every]
    x, y = round_ticks(min(0, *xs), max(xs)), round_ticks(*(y_range or (min(ys), max(ys))))

    def draw():
        axes = Axes(x, y, linear_labels(x), linear_labels(y))
        return axes.frame(x_name, y_name) + [line(axes, c, i, run) for i, (run, c) in enumerate(curves) if c]

    return Panel(title, draw)


def loss_panel(runs):
    curves = [(run, averaged(points(run.steps, "step", "loss"))) for run in runs]
    values = [y for _, curve in curves for _, y in curve]
    if not values:
        return None
    # A run that diverges must not flatten the others: it leaves the picture at twice the loss of the start.
    top = min(max(values), 2 * statistics.median(curve[0][1] for _, curve in curves if curve))
    curves = [(run, [(x, min(y, top)) for x, y in curve]) for run, curve in curves]
    return curves_panel("Training loss", curves, "step", "cross-entropy", (min(0, *values), top))


def percent(curve):
    return [(x, 100 * y) for x, y in curve]


def accuracy_panel(runs):
    curves = [(run, percent(points(run.epochs, "epoch", "test_accuracy"))) for run in runs]
    return curves_panel("Test accuracy by epoch", curves, "epoch", "%")


def time_panel(runs):
    curves = [(run, percent(points(run.epochs, "seconds", "test_accuracy"))) for run in runs]
    longest = max((x for _, curve in curves for x, _ in curve), default=0)
    unit, name = next(u for u in ((1, "s"), (60, "minutes"), (3600, "hours")) if longest <= 180 * u[0] or u[0] == 3600)
    curves = [(run, [(x / unit, y) for x, y in curve]) for run, curve in curves]
    return curves_panel("Test accuracy by time of training", curves, f"time of training, {name}", "%")


def bars_panel(title, values, x_name):
    """values: (run, value) of the runs that have one."""
    values = [(i, run, value) for i, (run, value) in enumerate(values) if value is not None]
    if not values:
        return None

    def draw():
        ticks = round_ticks(0, max(max(v for _, _, v in values), 1e-9), 5)
        axes = Axes(ticks, [0, 1], linear_labels(ticks), [])
        axes.left = min(max(MARGIN["left"], 16 + max(7 * len(run.label) for _, run, _ in values)), WIDTH // 2)
        axes.right -= 40
        parts = axes.frame(x_name, "")
        pitch = (axes.bottom - axes.top) / len(values)
        for row, (i, run, value) in enumerate(values):
            y, height = axes.top + (row + 0.18) * pitch, 0.64 * pitch
            end = axes.place(value, 0)[0]
            parts.append(f'<rect x="{axes.left}" y="{y:.1f}" width="{end - axes.left:.1f}" height="{height:.1f}" '
                         f'fill="{colour_of(i)}"/>')
            parts.append(text(axes.left - 8, y + height / 2 + 4, run.label, "end"))
            parts.append(text(end + 6, y + height / 2 + 4, f"{value:.3g}" if value < 1000 else f"{value:,.0f}", "start"))
        return parts

    return Panel(title, draw)


def rate_panel(runs):
    rates = [(run, [row["images_per_s"] for row in run.epochs if row.get("images_per_s")]) for run in runs]
    return bars_panel("Images per second (median of the epochs)", [(run, statistics.median(r) if r else None) for run, r in rates],
                      "images/s")


def memory_panel(runs):
    peaks = [(run, [row["peak_bytes"] for row in run.epochs + run.steps if row.get("peak_bytes")]) for run in runs]
    return bars_panel("Peak memory", [(run, max(p) / 1e6 if p else None) for run, p in peaks], "MB")


def steps_of(curve):
    """The corners of a staircase: a value holds until the next."""
    corners = []
    for x, y in curve:
        if corners and corners[-1][1] != y:
            corners.append((x, corners[-1][1]))
        if len(corners) > 1 and corners[-1][1] == corners[-2][1] == y:
            corners.pop()
        corners.append((x, y))
    return corners


def skips(run):
    """(step, log2 of the scale) of the reports before which a step was skipped."""
    found, before = [], 0
    for row in run.steps:
        if row.get("skipped") is not None and (row.get("scale") or 0) > 0 and row["step"] is not None:
            if row["skipped"] > before:
                found.append((row["step"], math.log2(row["scale"])))
            before = row["skipped"]
    return found


def scale_panel(runs):
    curves = [(run, [(x, math.log2(y)) for x, y in points(run.steps, "step", "scale") if y > 0]) for run in runs]
    every = [point for _, curve in curves for point in curve]
    if not every:
        return None
    low, high = math.floor(min(y for _, y in every)) - 1, math.ceil(max(y for _, y in every)) + 1
    low -= (high - low) % 2
    pitch = -(-(high - low) // 8)
    y = list(range(low, high + pitch, pitch))
    x = round_ticks(0, max(x for x, _ in every))

    def draw():
        axes = Axes(x, y, linear_labels(x), [f"{2 ** e:,}" if 0 <= e <= 24 else f"2^{e}" for e in y])
        parts = axes.frame("step", "")
        for i, (run, curve) in enumerate(curves):
            if curve:
                parts.append(line(axes, steps_of(curve), i, run, dashed=True))
            for place in skips(run):
                cx, cy = axes.place(*place)
                parts.append(f'<path class="skip" d="M{cx - 4:.1f} {cy - 4:.1f}l8 8m0 -8l-8 8" stroke="{colour_of(i)}"/>')
        return parts

    return Panel("Loss scale (a cross: a step was skipped)", draw)


PANELS = {"loss": loss_panel, "scale": scale_panel, "accuracy": accuracy_panel, "time": time_panel, "rate": rate_panel,
          "memory": memory_panel}

STYLE = """text { font-family: Helvetica, Arial, "DejaVu Sans", sans-serif; fill: #222 }
.grid { stroke: #e3e3e3; stroke-width: 1 } .axis { stroke: #555; stroke-width: 1 }
polyline { fill: none; stroke-width: 2; stroke-linejoin: round } .skip { fill: none; stroke-width: 2 }"""


def legend(runs, y):
    """Names, colours and dashes, in rows as wide as the picture."""
    parts, x = [], MARGIN["left"]
    for i, run in enumerate(runs):
        width = 46 + 7.5 * len(run.label)
        if x + width > COLUMNS * WIDTH and x > MARGIN["left"]:
            x, y = MARGIN["left"], y + 22
        parts.append(f'<line x1="{x:.1f}" y1="{y - 4}" x2="{x + 22:.1f}" y2="{y - 4}" stroke="{colour_of(i)}"{dash_of(i)} '
                     'stroke-width="4"/>')
        parts.append(text(x + 28, y, run.label, "start", 13))
        x += width
    return parts, y


def picture(runs, panels, title):
    drawn = [panel for panel in (PANELS[name](runs) for name in panels) if panel]
    if not drawn:
        raise BadLog("nothing to draw: the logs have no rows with the columns of these panels")
    parts, y = legend(runs, 62 if title else 30)
    if title:
        parts.append(text(MARGIN["left"], 32, title, "start", 17, font_weight="bold"))
    columns = min(COLUMNS, len(drawn))
    for i, panel in enumerate(drawn):
        x, top = WIDTH * (i % columns), y + 14 + HEIGHT * (i // columns)
        parts.append(f'<g transform="translate({x} {top})">')
        parts.append(text(MARGIN["left"], 26, panel.title, "start", 14, font_weight="bold"))
        parts += panel.draw() + ["</g>"]
    width, height = COLUMNS * WIDTH, y + 14 + HEIGHT * -(-len(drawn) // columns)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, f"<style>{STYLE}</style>", f'<rect width="{width}" height="{height}" fill="#fff"/>', *parts, "</svg>"]) + "\n"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", metavar="[LABEL=]FILE", help="the label is the file's name without its end if there is none")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="the picture")
    parser.add_argument("--title", default="")
    parser.add_argument("--panels", default=",".join(PANELS), help="which, in this order; default: %(default)s")
    args = parser.parse_args()
    unknown = [name for name in args.panels.split(",") if name not in PANELS]
    if unknown:
        parser.error(f"--panels: there is no {unknown[0]!r}; there are {', '.join(PANELS)}")
    return args


def main():
    args = arguments()
    try:
        runs = []
        for log in args.logs:
            label, equals, path = log.partition("=")
            runs.append(read_log(label, path) if equals and label else read_log(pathlib.Path(log).stem, log))
        pathlib.Path(args.out).write_text(picture(runs, args.panels.split(","), args.title), encoding="utf-8")
    except BadLog as error:
        sys.exit(f"chart: {error}")
    except OSError as error:
        sys.exit(f"chart: {args.out}: cannot be written: {error.strerror}")


if __name__ == "__main__":
    main()
