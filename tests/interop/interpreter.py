"""The interpreter for tests that need Python packages: this one, or the one that MEZZO_INTEROP_PYTHON names."""
import importlib
import os
import sys


def need(*packages):
    """The modules; goes on in the other interpreter, or says that the test is skipped, where one is missing."""
    try:
        return [importlib.import_module(name) for name in packages]
    except ImportError as missing:
        interpreter = os.environ.pop("MEZZO_INTEROP_PYTHON", "")
        if interpreter:
            os.execv(interpreter, [interpreter, *sys.argv])
        print(f"skipped: {missing}; MEZZO_INTEROP_PYTHON may name an interpreter that has it")
        sys.exit(77)
