"""Numbers on the command lines of the Python tools: argparse's own types take nan, and any sign."""
import argparse
import math


def number(kind, low, high=math.inf):
    """A type for add_argument: an int or a float from low to high, both included."""
    what = "a whole number" if kind is int else "a number"
    limits = f"from {low} to {high}" if high < math.inf else f"of at least {low}"

    def convert(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (low <= value <= high and math.isfinite(value)):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} {limits}")
        return value

    return convert


COUNT = number(int, 1, 1 << 32)
THREADS = number(int, 1, 1024)
SECONDS = number(float, 1e-3, 1e6)
RATE = number(float, 0, 1e3)
