#!/usr/bin/env python3
"""Prints the tables of src/cpu/elementwise/normal_tables.h; needs mpmath.

Polynomials for Phi(-t), the left tail of the normal distribution, and for Phi(-t) - t phi(t), the slope of GELU at -t, one for each
interval of t, in powers of the distance from its centre: least squares at Chebyshev nodes, relative to the size of the terms.
Beyond the last interval both count as 0.
"""
import mpmath as mp

mp.mp.dps = 60
INTERVALS, WIDTH, NODES = 16, mp.mpf("0.625"), 48


def tail(t):
    return mp.erfc(t / mp.sqrt(2)) / 2


def slope(t):
    return tail(t) - t * mp.npdf(t)


def coefficients(f, size, centre, degree):
    half = WIDTH / 2
    at = [half * mp.cos(mp.pi * (k + 0.5) / NODES) for k in range(NODES)]
    weights = [1 / size(centre + d) for d in at]
    powers = mp.matrix([[w * d**j for j in range(degree + 1)] for w, d in zip(weights, at)])
    return mp.lu_solve(powers, mp.matrix([w * f(centre + d) for w, d in zip(weights, at)]))


def table(name, f, size, degree):
    columns = [coefficients(f, size, i * WIDTH, degree) for i in range(INTERVALS - 1)] + [[mp.mpf(0)] * (degree + 1)]
    print(f"alignas(64) constexpr float {name}[{degree + 1}][16] = {{")
    for j in range(degree, -1, -1):
        print("    {" + ", ".join(mp.nstr(c[j], 9, min_fixed=0, max_fixed=0) + "f" for c in columns) + "},")
    print("};")


if __name__ == "__main__":
    table("normal_tail", tail, tail, 6)
    table("gelu_slope", slope, lambda t: tail(t) + t * mp.npdf(t), 7)
