"""Checks of a test that goes on after a failure, and programs that stand for others."""
import sys

failures = []


def check(condition, text):
    if not condition:
        failures.append(text)
        print("FAILED:", text, flush=True)


def write(path, script):
    """Writes a program; its path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def finish():
    print(f"{len(failures)} failures")
    sys.exit(1 if failures else 0)
