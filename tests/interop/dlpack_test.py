#!/usr/bin/env python3
"""Shares memory with NumPy and PyTorch through DLPack, both ways, old and new structs. Skipped where no interpreter has NumPy; without
PyTorch its part is left out.

    dlpack_test.py path/to/libinterop_bridge.so
"""
import ctypes
import gc
import sys
import weakref

from interpreter import need

numpy, = need("numpy")
try:
    import torch
except ImportError:
    torch = None

BRIDGE = ctypes.CDLL(sys.argv[1])
BRIDGE.error.restype = ctypes.c_char_p
API = ctypes.pythonapi
API.PyCapsule_New.restype = ctypes.py_object
API.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
API.PyCapsule_GetPointer.restype = ctypes.c_void_p
API.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
API.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
USED = {False: b"used_dltensor", True: b"used_dltensor_versioned"}  # a capsule does not copy its name


def call(function, *arguments):
    assert function(*arguments) == 0, BRIDGE.error()


def take(array, versioned):
    """mezzo holds the array's memory from now on."""
    capsule = array.__dlpack__(max_version=(1, 0)) if versioned else array.__dlpack__()
    pointer = API.PyCapsule_GetPointer(capsule, NAMES[versioned])
    API.PyCapsule_SetName(capsule, USED[versioned])
    call(BRIDGE.take_versioned if versioned else BRIDGE.take_legacy, ctypes.c_void_p(pointer))


class Held:
    """mezzo's tensor, as a producer of DLPack."""

    def __init__(self, versioned):
        self.versioned = versioned

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **_):
        pointer = ctypes.c_void_p()
        call(BRIDGE.give_versioned if self.versioned else BRIDGE.give_legacy, ctypes.byref(pointer))
        return API.PyCapsule_New(pointer, NAMES[self.versioned], None)


def takes_versioned(array):
    try:
        array.__dlpack__(max_version=(1, 0))
        return True
    except TypeError:  # NumPy before 2.1
        return False


def check(make, read, versioned):
    """make: an array whose elements are 1, 2, 3, 4. read: a consumer."""
    array = make()
    take(array, versioned)
    call(BRIDGE.double_held)
    assert array.tolist() == [[2, 4], [6, 8]], array  # the same memory
    back = read(Held(versioned))
    array[0, 1] = 40
    assert back.tolist() == [[2, 40], [6, 8]], back
    back[1, 0] = 60
    call(BRIDGE.double_held)
    assert array.tolist() == [[4, 80], [120, 16]], array
    # The array lives while mezzo or the consumer holds it, and no longer.
    alive = weakref.ref(array) if isinstance(array, numpy.ndarray) else None
    del array
    gc.collect()
    call(BRIDGE.drop_held)
    assert back.tolist() == [[4, 80], [120, 16]]
    del back
    gc.collect()
    assert alive is None or alive() is None


def main():
    makers = {"numpy": lambda dtype: numpy.array([[1, 2], [3, 4]], dtype), "numpy, by columns": lambda dtype: numpy.asfortranarray(numpy.array([[1, 2], [3, 4]], dtype))}
    readers = {"numpy": numpy.from_dlpack}
    if torch is not None:
        makers["torch"] = lambda dtype: torch.tensor([[1, 2], [3, 4]], dtype=getattr(torch, dtype))
        readers["torch"] = torch.from_dlpack
    count = 0
    for versioned in (False, True):
        for make_name, make in makers.items():
            if versioned and not takes_versioned(make("float32")):
                continue
            for read_name, read in readers.items():
                if read_name == "numpy" and not readable(versioned):
                    continue
                for dtype in ("float16", "float32", "float64", "int32", "int64", "uint8"):
                    check(lambda: make(dtype), read, versioned)
                    count += 1
    if torch is not None:
        brain = torch.tensor([1.5, -2], dtype=torch.bfloat16)
        take(brain, False)
        call(BRIDGE.double_held)
        assert torch.from_dlpack(Held(False)).dtype == torch.bfloat16 and brain.tolist() == [3, -4]
        for name in ("int8", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"):
            if hasattr(torch, name):
                codes = torch.tensor([1.0, 4.0]).to(getattr(torch, name))
                take(codes, False)
                back = torch.from_dlpack(Held(False))
                assert back.dtype == codes.dtype and back.data_ptr() == codes.data_ptr(), name
    locked = numpy.array([1.0, 2.0])
    locked.flags.writeable = False
    if takes_versioned(locked):
        take(locked, True)
        call(BRIDGE.double_held)
        assert locked.tolist() == [1, 2]  # a copy
    assert BRIDGE.take_legacy(None) == 1 and b"null" in BRIDGE.error()
    call(BRIDGE.drop_held)
    print(f"dlpack: {count} round trips, {'with' if torch else 'without'} PyTorch")


def readable(versioned):
    """Whether NumPy's consumer hands out arrays that may be written to: those of old structs are read-only."""
    return versioned and takes_versioned(numpy.zeros(1))


main()
