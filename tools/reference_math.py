#!/usr/bin/env python3
"""Writes tests/reference/math.h: values and derivatives of elementary and special functions with 40 digits, rounded to double.

Usage: tools/reference_math.py > tests/reference/math.h; needs mpmath.

Arguments are float32 numbers, so that one table is for float32 and float64, and a few that only float64 has.
"""
import struct

import mpmath as mp

mp.mp.dps = 40


def narrow(x):
    return struct.unpack("f", struct.pack("f", x))[0]


ALL = [1e-30, 1e-10, 1e-4, 0.01, 0.1, 0.3, 0.49, 0.5, 0.6, 0.9, 0.999, 1, 1.001, 1.25, 1.5, 2, 2.5, 3, 4.7, 7.9, 8, 8.1, 15, 30, 60]
LARGE = [1e3, 1e5, 1e10, 1e20, 1e30, 3e38]
BELOW_1 = [x for x in ALL if x < 1] + [0.99, 0.99999, 1 - 2.0**-24]
GAMMA = [0.55, 1.4, 1.6, 5.5] + [-x for x in (1e-30, 1e-4, 0.1, 0.5, 0.9, 1.5, 2.25, 3.7, 7.6, 10.5, 33.3, 100.25, 1000.75)]


def both(points):
    return points + [-x for x in points]


def erfinv_slope(x):
    return mp.sqrt(mp.pi) / 2 * mp.exp(mp.erfinv(x)**2)


# Function, derivative, points in float32, points in float64 alone.
FUNCTIONS = {
    "exp2": (lambda x: mp.mpf(2)**x, lambda x: mp.mpf(2)**x * mp.ln(2), both(ALL + [100, 127.5]), [1000.3]),
    "log2": (lambda x: mp.log(x, 2), lambda x: 1 / (x * mp.ln(2)), ALL + LARGE, [1e-300, 1e300]),
    "log10": (lambda x: mp.log10(x), lambda x: 1 / (x * mp.ln(10)), ALL + LARGE, [1e-300, 1e300]),
    "tan": (mp.tan, lambda x: mp.sec(x)**2, both(ALL), []),
    "asin": (mp.asin, lambda x: 1 / mp.sqrt(1 - x * x), both(BELOW_1), [1 - 2.0**-53]),
    "acos": (mp.acos, lambda x: -1 / mp.sqrt(1 - x * x), both(BELOW_1), [1 - 2.0**-53]),
    "atan": (mp.atan, lambda x: 1 / (1 + x * x), both(ALL + LARGE[:4]), [1e100]),
    "sinh": (mp.sinh, mp.cosh, both(ALL + [88.9]), [709]),
    "cosh": (mp.cosh, mp.sinh, both(ALL + [88.9]), [709]),
    "asinh": (mp.asinh, lambda x: 1 / mp.sqrt(1 + x * x), both(ALL + LARGE), [1e300]),
    "acosh": (mp.acosh, lambda x: 1 / mp.sqrt(x * x - 1), [x for x in ALL if x > 1] + [1 + 2.0**-23] + LARGE, [1e300]),
    "atanh": (mp.atanh, lambda x: 1 / (1 - x * x), both(BELOW_1), [1 - 2.0**-53]),
    "erfc": (mp.erfc, lambda x: -2 / mp.sqrt(mp.pi) * mp.exp(-x * x), both([x for x in ALL if x < 9] + [9.2]), [26]),
    "erfinv": (mp.erfinv, erfinv_slope, both(BELOW_1), [1e-300, 1 - 2.0**-53]),
    "lgamma": (lambda x: mp.ln(abs(mp.gamma(x))) if x < 0 else mp.loggamma(x), mp.digamma, ALL + LARGE[:5] + GAMMA, [1e-300, 1e305]),
    "digamma": (mp.digamma, lambda x: mp.psi(1, x), ALL + LARGE + GAMMA, [1e-150, 1e300]),
}


def main():
    print("// Written by tools/reference_math.py with mpmath " + mp.__version__ + "; do not edit.\n// clang-format off")
    print("#pragma once\n\nnamespace reference {\n\n// An argument, the function's value and its derivative.")
    print("struct MathRow {\n    double x, y, slope;\n};\n")
    for name, (function, slope, points, wide) in FUNCTIONS.items():
        print(f"inline constexpr MathRow math_{name}[] = {{")
        rows = [(x, function(mp.mpf(x)), slope(mp.mpf(x))) for x in [narrow(x) for x in points] + wide]
        words = ["{" + ", ".join(repr(float(mp.re(v))) for v in row) + "}," for row in rows]
        for i in range(0, len(words), 2):
            print("    " + " ".join(words[i:i + 2]))
        print("};")
    print("\n}  // namespace reference")


if __name__ == "__main__":
    main()
