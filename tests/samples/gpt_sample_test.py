#!/usr/bin/env python3
"""Runs samples/gpt as a user would: short trainings in every precision, a stop by a signal with exact resumption, a saved folder, and
what it says of wrong input.

    gpt_sample_test.py path/to/gpt
"""
import json
import pathlib
import re
import signal
import subprocess
import tempfile

from sample_runs import PROGRAM, check, finish, gates, run

SMALL = ["--layers", "2", "--width", "32", "--heads", "2", "--context", "32", "--batch", "8", "--threads", "1", "--device", "cpu", "--tokens", "20"]


def reports(text):
    """Steps, losses and bits per byte."""
    return [(int(m[1]), float(m[2]), float(m[3])) for m in re.finditer(r"^step +(\d+)  loss ([\d.]+)  validation ([\d.]+) bits", text, re.M)]


def test_training(text):
    first, last = {}, {}
    for architecture in ("gpt", "llama"):
        for precision in ("fp32", "bf16", "fp16", "fp8"):
            result = run("--text", text, "--architecture", architecture, "--precision", precision, "--steps", 80, "--report-every", 10,
                         "--lr", "1e-2", "--dropout", 0, "--prompt", "the quick ", *SMALL)
            rows = reports(result.stdout)
            check(not result.stderr and [row[0] for row in rows] == list(range(10, 81, 10)), f"{architecture} {precision}: reports {result.stdout}")
            check(rows and rows[-1][1] < 1.5 and rows[-1][2] < 2, f"{architecture} {precision}: it learns {rows}")
            check(("  scale " in result.stdout) == (precision == "fp16"), f"{architecture} {precision}: the scale is reported")
            check("\nthe quick " in result.stdout and "20 bytes, " in result.stdout, f"{architecture} {precision}: it generates {result.stdout}")
            first[architecture, precision], last[architecture, precision] = (rows[0][1], rows[-1][1]) if rows else (0, 0)
    for architecture in ("gpt", "llama"):
        # Later on the precisions are apart as two seeds would be, by how much is a matter of the processor's instructions.
        losses, ends = ([at[architecture, precision] for precision in ("fp32", "bf16", "fp16")] for at in (first, last))
        check(max(losses) - min(losses) < 0.01, f"{architecture}: precisions begin with nearly the same loss {losses}")
        check(len(set(ends)) > 1, f"{architecture}: precisions are not the same {ends}")


def test_states(text, folder):
    """Moments of fewer bytes: smaller checkpoints of a model that learns the same."""
    sizes = []
    for states in ("fp32", "bf16", "8bit"):
        result = run("--text", text, "--precision", "fp8", "--states", states, "--steps", 80, "--report-every", 80, "--lr", "1e-2", "--dropout", 0,
                     "--checkpoints", folder / states, *SMALL)
        check(reports(result.stdout)[-1][2] < 3, f"--states {states}: it learns {result.stdout}")
        sizes.append((folder / states / "step-0000000080.ckpt").stat().st_size)
    check(sizes[0] > sizes[1] > sizes[2], f"--states: checkpoints of {sizes} bytes")


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_stop_and_resume(text, folder):
    common = ["--text", text, "--steps", 200, "--report-every", 50, "--checkpoint-every", 10, *SMALL]
    whole, parts, checkpoint = folder / "whole", folder / "parts", folder / "run/step-0000000010.ckpt"
    checkpoint.parent.mkdir()
    run(*common, "--out", whole)
    arguments = [PROGRAM, *map(str, common), "--out", str(parts), "--checkpoints", str(checkpoint.parent), "--tensorboard", str(folder / "events"),
                 "--resume"]
    # The training cannot end while it waits to write its first checkpoint.
    with gates.writing_is_held(checkpoint) as gate, subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                                                     errors="replace", stdin=subprocess.DEVNULL) as process:
        check(gates.await_writer(process), "stop: no checkpoint is written")
        process.send_signal(signal.SIGTERM)
        gate.close()
        output, errors = process.communicate(timeout=120)
    check(process.returncode == 143 and "stopped by a signal after step" in output, f"stop: {process.returncode} {output}{errors}")
    result = run(*arguments[1:])
    check("resumed at step" in result.stdout, f"resumption: {result.stdout}")
    check(files_of(whole) == files_of(parts), "a run that was stopped and resumed ends with the weights of one that was not")
    events = [path.read_bytes() for path in (folder / "events").iterdir()]
    check(len(events) == 2 and all(b"loss" in data for data in events), f"--tensorboard: {len(events)} event files")
    other = run(*arguments[1:], "--lr", 0.5, expect=1)
    check("--lr" in other.stderr, f"another --lr is refused: {other.stderr}")


def test_saved_folder(folder):
    config = json.loads((folder / "whole" / "config.json").read_text())
    check(config["model_type"] == "gpt2" and config["n_layer"] == 2, f"config.json: {config}")
    outputs = [run("--model", folder / "whole", "--prompt", "the ", "--tokens", 20, "--seed", seed).stdout for seed in (1, 1, 2)]
    texts = [output.rsplit("\n", 2)[0].rsplit("\n\n", 1)[0] for output in outputs]
    check(texts[0] == texts[1] != texts[2], f"the seed decides the text: {texts}")


def test_tokens(text, folder):
    """Tokens that are learnt, saved with the model and found again; another tokenizer.json."""
    saved = folder / "tokens"
    learn = run("--text", text, "--bpe", 280, "--steps", 80, "--report-every", 80, "--lr", "1e-2", "--dropout", 0, "--out", saved,
                "--prompt", "the quick ", *SMALL)
    check("280 tokens, " in learn.stdout and " tokens/s" in learn.stdout, f"--bpe: {learn.stdout}")
    rows = reports(learn.stdout)
    check(rows and rows[-1][2] < 1, f"--bpe: it learns {rows}")
    tokenizer = saved / "tokenizer.json"
    check(len(json.loads(tokenizer.read_text())["model"]["vocab"]) == 280, "--out: tokenizer.json")
    text_of = lambda result: result.stdout.partition("\nthe quick ")[2].rsplit("\n", 2)[0]
    again = run("--model", saved, "--prompt", "the quick ", "--tokens", 20)
    check(text_of(learn) and text_of(again) == text_of(learn) and "20 tokens, " in again.stdout, f"--model: {again.stdout}, not {learn.stdout}")
    greedy = ["--model", saved, "--prompt", "the quick ", "--tokens", 20, "--temperature", 0]
    exact, quantized = run(*greedy), run(*greedy, "--quantize")
    check(text_of(quantized)[:20] == text_of(exact)[:20] != "", f"--quantize: {quantized.stdout}, not {exact.stdout}")
    given = run("--text", text, "--tokenizer", tokenizer, "--steps", 0, *SMALL)
    check("280 tokens, " in given.stdout, f"--tokenizer: {given.stdout}")
    tokenizer.unlink()
    refuse(1, "no tokenizer.json is there", "--model", saved)
    refuse(2, "--bpe", "--bpe", 280, "--tokenizer", tokenizer)
    refuse(1, str(tokenizer), "--tokenizer", tokenizer, "--text", text)


def refuse(code, word, *arguments):
    result = run(*arguments, expect=code)
    check(word in result.stderr and "loss" not in result.stdout, f"{arguments}: {word}: {result.stderr}")


def test_control_characters(folder):
    """U+009B begins commands to a terminal, as ESC [ does: it is shown, not sent."""
    text = folder / "controls"
    text.write_bytes("\x9b".encode() * 3000)
    result = run("--text", text, "--steps", 80, "--report-every", 80, "--lr", "1e-2", "--dropout", 0, "--temperature", 0, "--prompt", "a", *SMALL)
    check("\\x9b" in result.stdout and "\x9b" not in result.stdout, f"control characters: {result.stdout!r}")


def test_wrong_input(text, folder):
    refuse(2, "--resume", "--resume")
    refuse(2, "--width", "--width", 30, "--heads", 4)
    refuse(2, "--width", "--architecture", "llama", "--width", 12, "--heads", 4)
    refuse(2, "--prompt", "--prompt", "")
    refuse(2, "--precision", "--precision", "fp4")
    refuse(2, "--states", "--states", "4bit")
    refuse(1, "/no/such/text", "--text", "/no/such/text")
    refuse(1, "config.json", "--model", folder)
    refuse(1, "--checkpoints: ", "--text", text, "--checkpoints", text)
    refuse(1, "--tensorboard: ", "--text", text, "--tensorboard", text / "events")
    refuse(1, "--out: ", "--text", text, "--out", text)
    (folder / "short").write_text("too short")
    refuse(1, "--context", "--text", folder / "short")
    refuse(1, "--prompt: 33 bytes are more", "--text", text, "--steps", 2, "--report-every", 1, "--prompt", "x" * 33, *SMALL)
    refuse(1, f"--tokenizer: {text}: ", "--text", text, "--tokenizer", text)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        text = folder / "text"
        text.write_text("the quick brown fox jumps over the lazy dog. single precision keeps the sums.\n" * 60)
        test_training(text)
        test_states(text, folder)
        test_stop_and_resume(text, folder)
        test_saved_folder(folder)
        test_tokens(text, folder)
        test_control_characters(folder)
        test_wrong_input(text, folder)
    finish()


main()
