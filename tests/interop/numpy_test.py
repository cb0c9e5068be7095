#!/usr/bin/env python3
"""Takes arrays through NumPy's and mezzo's .npy and .npz files and back. Skipped where no interpreter has NumPy.

    numpy_test.py path/to/libinterop_bridge.so
"""
import ctypes
import itertools
import pathlib
import sys
import tempfile

from interpreter import need

numpy, = need("numpy")
WIDER = {"int16": "int32", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
SHAPES = [(), (1,), (3,), (2, 3), (0, 4), (2, 1, 3, 2)]


def arrays():
    generator = numpy.random.default_rng(1)
    for dtype, shape, byte_order, fortran in itertools.product(DTYPES, SHAPES, "<>", (False, True)):
        array = numpy.asarray(generator.integers(0, 100, shape)).astype(dtype).astype(numpy.dtype(dtype).newbyteorder(byte_order))
        yield numpy.asfortranarray(array) if fortran and array.ndim else array


def same(given, back):
    name = given.dtype.newbyteorder("=").name
    assert back.dtype.name == WIDER.get(name, name), (given.dtype, back.dtype)
    assert back.shape == given.shape and (back == given).all()


def main():
    bridge = ctypes.CDLL(sys.argv[1])
    bridge.error.restype = ctypes.c_char_p
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        source, target = str(folder / "source"), str(folder / "target")
        count = 0
        for array in arrays():
            numpy.save(source + ".npy", array)
            assert bridge.copy_npy(f"{source}.npy".encode(), f"{target}.npy".encode()) == 0, bridge.error()
            same(array, numpy.load(target + ".npy"))
            count += 1
        named = {f"array {i}": array for i, array in enumerate(arrays())}
        named["large"] = numpy.zeros((1 << 20,), numpy.float32)
        for save, compressed in itertools.product((numpy.savez, numpy.savez_compressed), (0, 1)):
            save(source + ".npz", **named)
            assert bridge.copy_npz(f"{source}.npz".encode(), f"{target}.npz".encode(), compressed) == 0, bridge.error()
            with numpy.load(target + ".npz") as back:
                assert list(back) == list(named)
                for key, array in named.items():
                    same(array, back[key])
            large = pathlib.Path(target + ".npz").stat().st_size > 1 << 22
            assert large == (not compressed)
        numpy.save(source + ".npy", numpy.array([{}]), allow_pickle=True)
        assert bridge.copy_npy(f"{source}.npy".encode(), f"{target}.npy".encode()) == 1
        assert b"|O" in bridge.error()
    print(f"numpy: {count} arrays alone, {len(named)} in archives")


main()
