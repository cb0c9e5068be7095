"""Programs and Markdown tables of bert_parity.py, gpt_parity.py and resnet_parity.py."""
import subprocess
import sys


def output(command):
    """Standard output of a program, which must succeed."""
    words = [str(part) for part in command]
    process = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if process.returncode != 0:
        sys.exit(f"{' '.join(words)}:\n{process.stderr.strip()[-2000:]}")
    return process.stdout


def table(header, rows):
    """Prints rows as they come, and an empty line."""
    for row in (header, ["---"] * len(header)):
        print("| " + " | ".join(row) + " |")
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)
    print(flush=True)


def error(errors, name):
    return f"{errors[name]:.2e}" if errors and name in errors else "-"
