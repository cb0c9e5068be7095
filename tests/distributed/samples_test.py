#!/usr/bin/env python3
"""Runs the samples under mezzo-run: several ranks train what one process does, a run that is killed or stopped by a signal goes on where it was, also on
another number of ranks.

    samples_test.py path/to/mezzo-run path/to/bert_classifier path/to/gpt path/to/resnet path/to/libmezzo_gloo.so [PART...]
"""
import array
import csv
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("samples", "support")]
import gates  # noqa: E402
from checks import check, failures  # noqa: E402
from sample_texts import write_texts  # noqa: E402

LAUNCHER, BERT, GPT, RESNET, GLOO = sys.argv[1:6]
# Runs are compared bit for bit, so no process may choose its kernels by their time.
ENVIRONMENT = {**os.environ, "MEZZO_GLOO": GLOO, "MEZZO_CACHE": "off", "MEZZO_ISA": "portable"}
LIMIT = 240  # seconds of a run
# The last batch of 81 texts has one row: fewer than there are ranks. Without dropout all numbers of ranks train the same.
TEXTS, BATCH = 81, 16
SIZES = ["--layers", "1", "--hidden", "32", "--heads", "2", "--max-length", "16", "--vocab-size", "300", "--threads", "1",
         "--lr", "1e-3", "--log-every", "1", "--batch", BATCH]


def command(ranks, program, *arguments, launcher_options=()):
    launcher = [LAUNCHER, "-n", str(ranks), "--grace", "20", "--no-prefix", *launcher_options] if ranks > 1 else []
    return [*launcher, program, *map(str, arguments)]


def run(ranks, program, *arguments, expect=0):
    result = subprocess.run(command(ranks, program, *arguments), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT,
                            env=ENVIRONMENT)
    check(result.returncode == expect, f"{ranks} ranks: {' '.join(map(str, arguments))}: exit code {result.returncode}, not {expect}\n"
                                       f"{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return result


def weights(path):
    """All values of a file of float32 and float64 weights, by name."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    kinds = {"F32": "f", "F64": "d", "I64": "q"}
    return {name: array.array(kinds[e["dtype"]], data[8 + size + e["data_offsets"][0]:8 + size + e["data_offsets"][1]]) for name, e in header.items()}


def difference(a, b):
    """The largest difference of two files' values."""
    x, y = weights(a), weights(b)
    check(x.keys() == y.keys(), f"{a} and {b} have other names")
    return max(abs(p - q) for name in x for p, q in zip(x[name], y[name]))


def write_images(folder, train, test):
    """CIFAR-10's format: a label and 32 x 32 x 3 bytes that depend on it. Labels of the training and the test images are given."""
    generator = random.Random(5)

    def record(label):
        return bytes([label]) + bytes((25 * label + channel * 40 + generator.randrange(30)) % 256 for channel in range(3) for _ in range(1024))
    folder.mkdir()
    (folder / "data_batch_1.bin").write_bytes(b"".join(map(record, train)))
    (folder / "test_batch.bin").write_bytes(b"".join(map(record, test)))


def bert_trains_the_same(folder, out):
    """Weights after pre-training and fine-tuning, and what is printed, are those of one process."""
    training = ["--data", folder, *SIZES, "--dropout", 0, "--pretrain-epochs", 1, "--epochs", 2]
    alone = run(1, BERT, *training, "--save", out / "alone").stdout
    report = re.compile(r"fine-tuning epoch .*train loss ([0-9.]+), validation macro-F1 ([0-9.]+) %")
    for ranks, more in ((2, []), (3, []), (2, ["--accumulate", 2]), (3, ["--shard"])):
        name = f"{ranks}{more[0] if more else ''}"
        base = out / "alone"
        if "--accumulate" in more:
            base = out / "accumulated"
            run(1, BERT, *training, *more, "--save", base)
        output = run(ranks, BERT, *training, *more, "--save", out / name).stdout
        apart = difference(base / "model.safetensors", out / name / "model.safetensors")
        check(apart < 2e-4, f"BERT on {ranks} ranks {more}: weights are {apart} from those of one process")
        if "--shard" in more:
            same = (out / "3/model.safetensors").read_bytes() == (out / name / "model.safetensors").read_bytes()
            check(same, "BERT on 3 ranks: --shard changes the weights")
        if not more:
            for then, now in zip(report.findall(alone), report.findall(output)):
                check(abs(float(then[0]) - float(now[0])) < 2e-3 and abs(float(then[1]) - float(now[1])) < 5, f"BERT on {ranks} ranks: {now}, alone {then}")
        check(output.count("\nfine-tuning: ") == 1 and f"{ranks} ranks share each batch" in output, f"BERT: rank 0 speaks for all\n{output}")


def gpt_trains_the_same(out):
    """Weights after a training, and what is printed, are those of one process. 3 ranks have 3, 3 and 2 rows of a batch."""
    text = out / "text"
    text.write_text("the quick brown fox jumps over the lazy dog, and single precision keeps the sums.\n" * 30)
    training = ["--text", text, "--layers", 1, "--width", 16, "--heads", 2, "--context", 16, "--batch", 8, "--dropout", 0, "--steps", 20,
                "--report-every", 10, "--threads", 1, "--tokens", 0]
    run(1, GPT, *training, "--out", out / "gpt1")
    for ranks in (2, 3):
        output = run(ranks, GPT, *training, "--out", out / f"gpt{ranks}").stdout
        apart = difference(out / "gpt1/model.safetensors", out / f"gpt{ranks}/model.safetensors")
        check(apart < 2e-4, f"gpt on {ranks} ranks: weights are {apart} from those of one process")
        check(output.count("loss") == 2 and f"{ranks} ranks share each batch" in output, f"gpt: rank 0 speaks for all\n{output}")


def gpt_goes_on(out):
    """Stopped by SIGTERM, gone on, stopped by SIGINT, gone on: 2 ranks, float16 with dropout. The end is that of the uninterrupted run, bit for bit."""
    text = out / "more text"
    text.write_text("a rank that is asked to stop says so to all, and all stop after the same step.\n" * 30)
    training = ["--text", text, "--layers", 1, "--width", 16, "--heads", 2, "--context", 16, "--batch", 8, "--dropout", 0.1, "--steps", 20,
                "--report-every", 10, "--threads", 1, "--tokens", 0, "--precision", "fp16"]
    run(2, GPT, *training, "--out", out / "gpt whole")
    checkpoints = out / "gpt run"
    checkpoints.mkdir()
    files = ["--checkpoints", checkpoints, "--checkpoint-every", 5, "--resume", "--out", out / "gpt stopped"]
    stopped = []
    for step, number in ((5, signal.SIGTERM), (10, signal.SIGINT)):
        code, output = interrupt(2, checkpoint_of(checkpoints, step), lambda process, number=number: gates.signal_all(process, number), GPT, *training, *files)
        check(code == 128 + number, f"gpt, signal {number}: exit code {code}\n{output}")
        check(re.findall(r"resumed at step (\d+)", output) == stopped, f"gpt stopped after step {stopped}\n{output}")
        stopped = re.findall(r"stopped by a signal after step (\d+)", output)
        check(len(stopped) == 1, f"gpt, signal {number}\n{output}")
    output = run(2, GPT, *training, *files).stdout
    check(re.findall(r"resumed at step (\d+)", output) == stopped, f"gpt stopped after step {stopped}\n{output}")
    same = (out / "gpt whole/model.safetensors").read_bytes() == (out / "gpt stopped/model.safetensors").read_bytes()
    check(same, "gpt stopped and resumed is not the uninterrupted run")


def interrupt(ranks, checkpoint, act, program, *arguments, launcher_options=()):
    """Starts a training, and acts on the launcher's process while rank 0 waits to write this checkpoint: the training cannot go on before. Exit code
    and output."""
    words = command(ranks, program, *arguments, launcher_options=launcher_options)
    with gates.writing_is_held(checkpoint) as gate, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                                                     stdin=subprocess.DEVNULL, env=ENVIRONMENT) as process:
        try:
            check(gates.await_writer(process, checkpoint), f"{ranks} ranks ended without a checkpoint")
            if process.poll() is None:
                act(process)
            gate.close()
            output = process.communicate(timeout=LIMIT)[0]
        except BaseException:
            process.kill()  # which ends its ranks
            raise
    return process.returncode, output


def checkpoint_of(folder, step):
    return folder / f"step-{step:010}.ckpt"


def kill_one(process):
    gates.send_to_last(process, signal.SIGKILL)


def ask_one(process):
    gates.send_to_last(process, signal.SIGTERM)


def step_file(checkpoints, stage, step):
    """The checkpoint of a step, in a folder that is made for its gate."""
    (checkpoints / stage).mkdir(parents=True, exist_ok=True)
    return checkpoints / stage / f"step-{step:010}.ckpt"


def bert_goes_on(folder, out):
    """Killed and stopped, on 2 ranks, float16 with dropout: the end is that of the uninterrupted run, bit for bit."""
    training = ["--data", folder, *SIZES, "--pretrain-epochs", 1, "--epochs", 3, "--precision", "fp16"]
    run(2, BERT, *training, "--save", out / "whole")
    checkpoints = out / "killed run"
    resumed = [*training, "--checkpoints", checkpoints, "--checkpoint-every", 2, "--resume", "--save", out / "killed"]
    code, output = interrupt(2, step_file(checkpoints, "pre-training", 2), kill_one, BERT, *resumed)
    # Whose end the launcher sees first is a matter of time. Rank 0 was about to write, and has.
    check(code in (1, 128 + 9) and re.search("first cause: rank 1 .*(is gone|signal 9)", output), f"a killed rank: exit code {code}\n{output}")
    rarely = [*training, "--checkpoints", checkpoints, "--checkpoint-every", 1000, "--resume"]  # and after each epoch of 6 steps
    code, output = interrupt(2, step_file(checkpoints, "fine-tuning", 6), gates.signal_all, BERT, *rarely)
    check("resumed pre-training at epoch 1, step 2\n" in output, f"a rank was killed at step 2:\n{output}")
    stopped = re.findall(r"stopped by a signal after step (\d+) of fine-tuning", output)
    check(code == 128 + 15 and stopped == ["7"], f"SIGTERM: exit code {code}\n{output}")
    output = run(2, BERT, *resumed).stdout
    went_on = re.findall(r"resumed fine-tuning .* step (\d+)", output)
    check(stopped == went_on, f"stopped after step {stopped}, resumed at {went_on}")
    same = (out / "whole/model.safetensors").read_bytes() == (out / "killed/model.safetensors").read_bytes()
    check(same, f"killed and stopped: weights are {difference(out / 'whole/model.safetensors', out / 'killed/model.safetensors')} from those of the "
                "uninterrupted run")


def bert_is_started_again(folder, out):
    """A rank is killed, and mezzo-run --restarts does the rest."""
    training = ["--data", folder, *SIZES, "--epochs", 2, "--precision", "fp16"]
    run(2, BERT, *training, "--save", out / "at once")
    checkpoints = out / "again run"
    code, output = interrupt(2, step_file(checkpoints, "fine-tuning", 2), kill_one, BERT, *training, "--checkpoints", checkpoints, "--checkpoint-every", 2,
                             "--resume", "--save", out / "again", launcher_options=["--restarts", "2"])
    check(code == 0 and "restart 1 of 2" in output and "resumed fine-tuning at epoch 1, step 2\n" in output, f"started again: exit code {code}\n{output}")
    same = (out / "at once/model.safetensors").read_bytes() == (out / "again/model.safetensors").read_bytes()
    check(same, "started again: the weights are not those of the uninterrupted run")


def bert_on_other_ranks(folder, out):
    """Stopped on 2 ranks, of which one gets the signal, resumed on 1, 2 and 3: every text is still seen once, so the end is the same."""
    training = ["--data", folder, *SIZES, "--dropout", 0, "--epochs", 3]
    run(1, BERT, *training, "--save", out / "one")
    stopped = out / "stopped run"
    code, output = interrupt(2, step_file(stopped, "fine-tuning", 2), ask_one, BERT, *training, "--checkpoints", stopped, "--checkpoint-every", 2,
                             "--shard")
    check(code == 128 + 15 and "; --resume goes on from" in output, f"SIGTERM: exit code {code}\n{output}")
    for ranks in (1, 2, 3):
        checkpoints = out / f"resumed run{ranks}"
        shutil.copytree(stopped, checkpoints)
        shard = ["--shard"] if ranks == 3 else []  # it needs no other checkpoint
        output = run(ranks, BERT, *training, "--checkpoints", checkpoints, *shard, "--resume", "--save", out / f"resumed{ranks}").stdout
        check("resumed fine-tuning at epoch" in output, f"resumed on {ranks} ranks:\n{output}")
        apart = difference(out / "one/model.safetensors", out / f"resumed{ranks}" / "model.safetensors")
        check(apart < 2e-4, f"stopped on 2 ranks, resumed on {ranks}: weights are {apart} from those of one uninterrupted process")


def resnet(folder, out):
    """Batch norm, momentum, augmentation, an O2 preset; the last batch of 50 images has 2 rows for 3 ranks."""
    training = ["--data", folder, "--model", "resnet8", "--batch", 16, "--threads", 1, "--device", "cpu", "--epochs", 3, "--lr", "0.02",
                "--log-every", 1]
    for ranks, preset in ((1, []), (2, ["--opt-level", "O2"]), (3, [])):
        name = f"resnet{ranks}"
        run(ranks, RESNET, *training, *preset, "--log", out / f"{name}.csv", "--save", out / f"{name}.safetensors")
        checkpoints = out / f"{name}-checkpoints"
        checkpoints.mkdir()
        files = ["--checkpoints", checkpoints, "--checkpoint-every", 3, "--resume", "--save", out / f"{name}k.safetensors"]
        code, output = interrupt(ranks, checkpoint_of(checkpoints, 3), gates.signal_all, RESNET, *training, *preset, *files)
        check(code == 128 + 15 and "stopped by a signal after step" in output, f"resnet, SIGTERM on {ranks} ranks: exit code {code}\n{output}")
        output = run(ranks, RESNET, *training, *preset, *files).stdout
        check("resumed at epoch" in output, f"resnet resumed on {ranks} ranks:\n{output}")
        same = (out / f"{name}.safetensors").read_bytes() == (out / f"{name}k.safetensors").read_bytes()
        check(same, f"resnet on {ranks} ranks {preset}: stopped and resumed is not the uninterrupted run")
    steps, epochs = log_rows(out / "resnet3.csv", "step"), log_rows(out / "resnet3.csv", "epoch")
    check(len(steps) == 12 and len(epochs) == 3, f"resnet on 3 ranks: {len(steps)} steps and {len(epochs)} epochs in the log")
    accuracies = [float(row["test_accuracy"]) for row in epochs]
    check(all(abs(23 * a - round(23 * a)) < 1e-3 for a in accuracies), f"each test image counts once: {accuracies}")
    for ranks in (1, 2):  # batch statistics are of a rank's rows: another training, but one that goes on
        output = run(ranks, RESNET, *training, "--checkpoints", out / "resnet3-checkpoints", "--resume").stdout
        check("resumed at epoch 4" in output, f"a checkpoint of 3 ranks on {ranks}:\n{output}")


def resnet_synchronised(folder, out):
    """With --sync-bn two ranks train what one process does."""
    training = ["--data", folder, "--model", "resnet8", "--batch", 16, "--threads", 1, "--device", "cpu", "--epochs", 1, "--lr", "0.01"]
    run(1, RESNET, *training, "--save", out / "whole.safetensors")
    apart = {}
    for option in ([], ["--sync-bn"]):
        path = out / f"two{len(option)}.safetensors"
        run(2, RESNET, *training, *option, "--save", path)
        apart[len(option)] = difference(out / "whole.safetensors", path)
    check(apart[1] < 0.02 * apart[0], f"weights are {apart[1]} from those of one process with --sync-bn, {apart[0]} without")


def log_rows(path, kind):
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if bool(row["test_accuracy"]) == (kind == "epoch")]


def repeated_rows(out):
    """One class, so that all is right soon. The one test image, and the last image of 13 in batches of 4, are there three times, and count once."""
    write_images(out / "one class", [3] * 13, [3])
    run(3, RESNET, "--data", out / "one class", "--model", "resnet8", "--batch", 4, "--threads", 1, "--device", "cpu", "--epochs", 4, "--lr", "0.05",
        "--log", out / "one.csv")
    last = log_rows(out / "one.csv", "epoch")[-1]
    check(float(last["test_accuracy"]) == 1 and float(last["train_accuracy"]) == 1, f"rows that are repeated: {last}")


def errors(folder, out):
    """What rank 0 alone can see ends all ranks, with its words."""
    (out / "a file").write_text("text")
    result = run(2, BERT, "--data", folder, *SIZES, "--epochs", 1, "--checkpoints", out / "a file", expect=1)
    check("cannot be made: Not a directory" in result.stderr, f"an error of rank 0: {result.stderr}")
    result = run(2, BERT, "--data", folder, "--batch", 0, expect=2)
    check("--batch" in result.stderr, f"a wrong option: {result.stderr}")


def nobody_left(marker):
    """Processes whose command line names the temporary folder."""
    left = []
    for line in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = line.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in text and int(line.parent.name) != os.getpid():
            left.append(text)
    check(not left, f"processes are left: {left}")


def main():
    with tempfile.TemporaryDirectory(prefix="mezzo-samples-") as name:
        out = pathlib.Path(name)
        texts, images = out / "texts", out / "images"
        texts.mkdir()
        write_texts(texts, TEXTS, 21)
        write_images(images, [i % 10 for i in range(50)], [i % 10 for i in range(23)])
        parts = {"bert_trains_the_same": lambda: bert_trains_the_same(texts, out), "bert_goes_on": lambda: bert_goes_on(texts, out),
                 "bert_is_started_again": lambda: bert_is_started_again(texts, out), "bert_on_other_ranks": lambda: bert_on_other_ranks(texts, out), "gpt": lambda: gpt_trains_the_same(out),
                 "gpt_goes_on": lambda: gpt_goes_on(out), "resnet": lambda: resnet(images, out),
                 "resnet_synchronised": lambda: resnet_synchronised(images, out), "repeated_rows": lambda: repeated_rows(out),
                 "errors": lambda: errors(texts, out)}
        for part in sys.argv[6:] or parts:
            start = time.monotonic()
            parts[part]()
            print(f"{part}: {time.monotonic() - start:.1f} s", flush=True)
        nobody_left(name)
    print("failed:" if failures else "passed", *failures, sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
