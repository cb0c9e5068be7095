#!/usr/bin/env python3
"""Runs samples/bert_classifier as a user would: training in all precisions on made-up texts, pre-training, prediction from saved weights,
kill -9 at random moments with exact resumption, option files, and errors for wrong input.

    bert_sample_test.py path/to/bert_classifier
"""
import os
import random
import re
import signal

from sample_runs import check, finish, interrupt, kill_and_resume, run, run_parts, without
from sample_texts import write_texts

SIZES = ["--layers", "1", "--hidden", "32", "--heads", "2", "--max-length", "16", "--vocab-size", "300", "--threads", "1"]


def last_f1(output):
    return float(re.findall(r"macro-F1 ([0-9.]+) %", output)[-1])


def learns(folder, out):
    for precision in ("fp32", "bf16", "fp16", "fp8"):
        result = run("--data", folder, *SIZES, "--epochs", 6, "--lr", 5e-3, "--precision", precision, "--save", out / precision,
                     "--tensorboard", out / "log" / precision)
        output, progress = result.stdout, result.stderr
        check(last_f1(output) > 95, f"{precision}: macro-F1 {last_f1(output)} %\n{output}")
        check("fine-tuning epoch 6/6 100 % 120/120" in progress, f"{precision}: no progress of the last step\n{progress}")
        if precision == "fp16":
            check("scale 65536  skipped 0" in progress, "fp16: no scale in the progress lines\n" + progress)
        events = [path.read_bytes() for path in (out / "log" / precision / "fine-tuning").glob("events.out.tfevents.*")]
        check(len(events) == 1 and b"macro-F1" in events[0] and b"loss" in events[0], f"{precision}: no TensorBoard file of the metrics")
    lines = folder / "lines.txt"
    lines.write_text("a quiet river\na horrid river\n\n")
    output = run("--weights", out / "fp32", "--epochs", 0, "--max-length", 16, "--predict", lines).stdout
    check([line.split("\t")[0] for line in output.splitlines() if "\t" in line][:2] == ["fine", "rude"], "prediction:\n" + output)


def narrows_states(folder, out):
    """A model whose moments are stored in fewer bytes learns the same, and has smaller checkpoints."""
    sizes = []
    for states in ("fp32", "bf16", "8bit"):
        output = run("--data", folder, *SIZES, "--epochs", 6, "--lr", 5e-3, "--precision", "fp8", "--states", states, "--checkpoints", out / states).stdout
        check(last_f1(output) > 95, f"--states {states}: macro-F1 {last_f1(output)} %\n{output}")
        sizes.append(max((out / states).rglob("*.ckpt")).stat().st_size)
    check(sizes[0] > sizes[1] > sizes[2], f"--states: checkpoints of {sizes} bytes")


def accumulates(folder, out):
    """Two half batches per step give the update of the whole batch."""
    one = ["--data", folder, *SIZES, "--epochs", 1, "--dropout", 0, "--lr", 1e-3]
    losses = [re.findall(r"train loss ([0-9.]+)", run(*one, "--batch", b, "--accumulate", a).stdout) for b, a in ((16, 1), (8, 2))]
    check(abs(float(losses[0][0]) - float(losses[1][0])) < 2e-3, f"accumulation: losses {losses}")


def write_sequences(folder):
    """Texts in which a hidden word follows from its neighbours: parts of three fixed sequences."""
    generator = random.Random(1)
    sequences = [line.split() for line in ("one two three four five six seven eight", "red orange yellow green blue indigo violet grey",
                                           "monday tuesday wednesday thursday friday saturday sunday again")]
    for split, count in (("train", 1000), ("val", 30)):
        choices = [(generator.randrange(3), generator.randrange(4)) for _ in range(count)]
        (folder / f"{split}_text.txt").write_text("".join(" ".join(sequences[k][at:at + 5]) + "\n" for k, at in choices))
        (folder / f"{split}_labels.txt").write_text("".join(f"{k % 2}\n" for k, _ in choices))


def pretrains(folder, out):
    """The loss falls far below 3.2, the entropy of 24 equally frequent words: the model reads the context."""
    texts = out / "sequences"
    texts.mkdir()
    write_sequences(texts)
    output = run("--data", texts, "--max-length", 16, "--vocab-size", 400, "--threads", 1, "--pretrain-epochs", 6, "--epochs", 1).stdout
    losses = [float(x) for x in re.findall(r"pre-training epoch \d, step \d+: train loss ([0-9.]+)", output)]
    check(len(losses) == 6 and losses[-1] < 1, f"pre-training losses {losses}\n{output}")
    check(last_f1(output) > 95, f"classifier on the pre-trained encoder: macro-F1 {last_f1(output)} %\n{output}")


def survives_kills(folder, out):
    training = ["--data", folder, *SIZES, "--pretrain-epochs", 3, "--epochs", 5, "--lr", 1e-3, "--precision", "fp16"]
    run(*training, "--save", out / "whole", "--checkpoints", out / "whole run", "--checkpoint-every", 3)
    resumed = [*training, "--save", out / "killed", "--checkpoints", out / "killed run", "--checkpoint-every", 3, "--resume"]
    kills = kill_and_resume(resumed, out / "killed run/pre-training/step-0000000003.ckpt", 0.02, out / "killed run")
    same = (out / "whole/model.safetensors").read_bytes() == (out / "killed/model.safetensors").read_bytes()
    check(same, f"weights after {kills} kills differ from those of the uninterrupted run")
    print(f"killed {kills} times")
    refuses_other_settings(training, folder, out)


def refuses_other_settings(training, folder, out):
    """A training goes on only as the one it was; what differs is listed, and nothing is written."""
    checkpoints = out / "killed run"
    before = {path: path.read_bytes() for path in checkpoints.rglob("*.ckpt")}
    resume = [*training, "--checkpoints", checkpoints, "--resume"]
    changes = {"--batch": (16, 8), "--heads": (2, 4), "--dropout": (0.1, 0.2), "--precision": ("fp16", "fp32"), "--clip": (1, 0.5), "--states": ("fp32", "8bit"),
               "--warmup": (0.1, 0.2), "--lr": (0.001, 0.002), "--pretrain-lr": (0.001, 0.002), "--weight-decay": (0.01, 0.02),
               "--seed": (1, 2), "--accumulate": (1, 2), "--epochs": (5, 6), "--pretrain-epochs": (3, 4), "--max-steps": (0, 7),
               "--max-length": (16, 17), "--layers": (1, 2), "--hidden": (32, 64), "--intermediate": (128, 100)}
    for name, (then, now) in changes.items():
        message = run(*without(resume, name), name, now, expect=1).stderr
        check(f"  {name}: {then}, now {now}\n" in message, f"{name}: {message}")
    check("  --pooler: true, now false\n" in run(*resume, "--no-pooler", expect=1).stderr, "--no-pooler is not missed")
    message = run(*without(resume, "--heads"), "--heads", 4, "--clip", 2, expect=1).stderr
    check(message.count(", now ") == 2 and "--heads: 2, now 4" in message and "--clip: 1, now 2" in message, message)
    other = out / "other texts"
    other.mkdir()
    write_texts(other, 320, 96)
    texts = (other / "train_text.txt").read_text()
    (other / "train_text.txt").write_text(texts.replace("quiet", "queit", 1))
    message = run(*[other if a == folder else a for a in resume], expect=1).stderr
    check("  training data: 320 texts, digest " in message, f"other texts of the same number: {message}")
    words = (out / "whole/vocab.txt").read_text().splitlines()
    words[-1], words[-2] = words[-2], words[-1]
    (out / "vocab.txt").write_text("\n".join(words) + "\n")
    message = run(*resume, "--vocab", out / "vocab.txt", expect=1).stderr
    check(f"  vocabulary: {len(words)}, digest " in message and message.count(", now ") == 1, f"another vocabulary: {message}")
    message = run(*training, "--checkpoints", checkpoints, expect=1).stderr
    check("has checkpoints; go on from them with --resume" in message, f"checkpoints and no --resume: {message}")
    after = {path: path.read_bytes() for path in checkpoints.rglob("*.ckpt")}
    check(after == before, "a refused resumption has written a checkpoint")
    # What does not shape the training may change.
    run(*without(resume, "--threads"), "--threads", 2, "--log-every", 7, "--checkpoint-every", 5)


def stops_on_signals(folder, out):
    """Ctrl-C ends it after a step with a checkpoint and exit code 130; resumed, it is the uninterrupted training."""
    training = ["--data", folder, *SIZES, "--epochs", 2]
    run(*training, "--save", out / "at once")
    files = ["--checkpoints", out / "stopped run", "--checkpoint-every", 4, "--resume", "--save", out / "stopped"]
    output = interrupt(out / "stopped run/fine-tuning/step-0000000004.ckpt", signal.SIGINT, *training, *files)
    check(f"stopped by a signal after step 5 of fine-tuning; --resume goes on from {out / 'stopped run'}\n" in output, output)
    check("resumed fine-tuning at epoch 1, step 5\n" in run(*training, *files).stdout, "it does not go on after step 5")
    same = (out / "at once/model.safetensors").read_bytes() == (out / "stopped/model.safetensors").read_bytes()
    check(same, "stopped and resumed is not the uninterrupted training")


def reads_option_files(folder, out):
    """The same run by a file of options and by the command line; the command line wins."""
    line = ["--data", folder, *SIZES, "--epochs", 1, "--lr", 1e-3, "--no-pooler", "--save", out / "by line"]
    run(*line)
    names = [str(a)[2:] for a in SIZES[::2]]
    values = "".join(f"{name} = {value}\n" for name, value in zip(names, SIZES[1::2]))
    (out / "options.toml").write_text(f"data = '{folder}'\n{values}epochs = 9\nlr = 1e-3\npooler = false\nsave = '{out / 'by file'}'\n")
    run("--config", out / "options.toml", "--epochs", 1)
    same = (out / "by line/model.safetensors").read_bytes() == (out / "by file/model.safetensors").read_bytes()
    check(same, "--config gives another training than the command line")


def names_program(message):
    """The error begins with the program's name; warnings may come before it."""
    return ("\n" + message).count("\nbert_classifier: ") == 1


def fails_early(folder, out):
    """What can be known at once is said before a line of output about the training."""
    data = ["--data", folder, *SIZES]
    file = out / "a file"
    file.write_text("text")
    (out / "saved/model.safetensors").mkdir(parents=True)
    (out / "no run/fine-tuning").mkdir(parents=True)
    (out / "no run/fine-tuning/step-0000000001.ckpt").write_text("text")
    for text, *arguments in (
            (f"--save: {file}: cannot be made: Not a directory", *data, "--save", file),
            (f"--save: {file}/in: cannot be made: Not a directory", *data, "--save", f"{file}/in"),
            ("model.safetensors: is a folder, not a file", *data, "--save", out / "saved"),
            ("--save: /proc/", *data, "--save", "/proc/folder"),
            (f"--checkpoints: {file}/fine-tuning: cannot be made: Not a directory", *data, "--checkpoints", file),
            ("--checkpoints: " + "x" * 256 + "/fine-tuning: cannot be made: File name too long", *data, "--checkpoints", "x" * 256),
            (f"--tensorboard: {file}: cannot be made: Not a directory", *data, "--tensorboard", file),
            ("BERT configuration: cannot open", *data, "--model-config", out / "none"),
            (f"{out / 'none'}: cannot be read: No such file or directory", *data, "--predict", out / "none"),
            (f"{out}: cannot be read: Is a directory", *data, "--predict", out),
            ("/proc/self/mem: cannot be read: Input/output error", *data, "--predict", "/proc/self/mem"),
            ("step-0000000001.ckpt", *data, "--checkpoints", out / "no run", "--resume")):
        result = run(*arguments, expect=1)
        check(text in result.stderr and names_program(result.stderr), f"wanted \"{text}\", got: {result.stderr}")
        check("epoch" not in result.stdout, f"{text}: after {result.stdout}")
    (out / "no texts").mkdir()
    for name in ("train_text.txt", "train_labels.txt"):
        (out / "no texts" / name).mkdir()
    message = run("--data", out / "no texts", *SIZES, expect=1).stderr
    check("train_text.txt: cannot be read: Is a directory" in message, f"a folder as texts: {message}")


def explains_errors(folder, out):
    def fails(text, *arguments, code=1):
        message = run(*arguments, expect=code).stderr
        check(text in message and names_program(message) == (code == 1), f"wanted \"{text}\", got: {message}")

    data = ["--data", folder, *SIZES]
    fails("train_text.txt: cannot be read", "--data", out / "nothing")
    fails("cannot be read", *data, "--epochs", 0, "--predict", out / "nothing")
    os.mkfifo(out / "texts")
    fails("texts: is a named pipe", *data, "--epochs", 0, "--predict", out / "texts")
    fails("--resume requires --checkpoints", *data, "--resume", code=2)
    fails("--precision", *data, "--precision", "fp4", code=2)
    fails("--batch", *data, "--batch", "0", code=2)
    fails("hidden_size", "--data", folder, "--hidden", 32, "--heads", 5)
    fails("--weights: there is no", "--weights", out / "nothing")
    fails("exceeds the model's", "--data", folder, "--weights", out / "fp32", "--max-length", 5000)
    (out / "broken").mkdir()
    for name, content, text in (("config.json", "{", "config.json"), ("vocab.txt", "", "vocab.txt"), ("model.safetensors", "xyz", "model.safetensors")):
        for file in ("config.json", "vocab.txt", "model.safetensors", "classes.txt"):
            (out / "broken" / file).write_bytes((out / "fp32" / file).read_bytes())
        (out / "broken" / name).write_text(content)
        fails(text, "--data", folder, "--weights", out / "broken", "--max-length", 16)
    for path in (out / "whole run").rglob("*.ckpt"):
        path.write_bytes(path.read_bytes()[:-100])
    fails("checkpoints can be read", *data, "--checkpoints", out / "whole run", "--resume")
    bad = out / "labels"
    bad.mkdir()
    write_texts(bad, 320, 96)
    (bad / "train_labels.txt").write_text("0\n1\n")
    fails("train_labels.txt has 2", "--data", bad, *SIZES)
    (bad / "train_labels.txt").write_text("0\nmaybe\n" + "1\n" * 318)
    fails('line 2: label "maybe" is not a class number', "--data", bad, *SIZES)


run_parts((fails_early, learns, narrows_states, accumulates, pretrains, survives_kills, stops_on_signals, reads_option_files, explains_errors), lambda data: write_texts(data, 320, 96))
finish()
