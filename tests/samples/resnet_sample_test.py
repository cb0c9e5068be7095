#!/usr/bin/env python3
"""Runs samples/resnet as a user would: 20 steps in every precision and preset on made-up images, image files and their classes,
weights under torchvision's names, kill -9 with exact resumption, the log, and what it says of wrong input.

    resnet_sample_test.py path/to/resnet
"""
import array
import csv
import json
import pathlib
import random
import struct
import subprocess
import time
import zlib

from sample_runs import PROGRAM, check, finish, kill_and_resume, run, run_parts, without

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
SMALL = ["--model", "resnet8", "--batch", "20", "--threads", "1", "--device", "cpu", "--warmup", "0"]


def picture(label, generator):
    """Rows of pixels, 32 x 32 x 3: stripes whose direction and colour are the class's."""
    base = [40 + 150 * ((label >> bit) & 1) for bit in range(3)]
    rows = []
    for y in range(32):
        row = bytearray()
        for x in range(32):
            bright = 40 if ((y if label < 5 else x) // 4) % 2 else 0
            row += bytes(min(255, c + bright + generator.randrange(16)) for c in base)
        rows.append(bytes(row))
    return rows


def cifar_record(label, rows):
    pixels = b"".join(rows)
    return bytes([label]) + pixels[0::3] + pixels[1::3] + pixels[2::3]


def png(rows):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", len(rows[0]) // 3, len(rows), 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + r for r in rows))) + chunk(b"IEND", b"")


def write_cifar(folder, train=200, test=40):
    generator = random.Random(5)
    for name, count in (("data_batch_1.bin", train // 2), ("data_batch_2.bin", train - train // 2), ("test_batch.bin", test)):
        (folder / name).write_bytes(b"".join(cifar_record(i % 10, picture(i % 10, generator)) for i in range(count)))


def checkpoint_of(folder, step):
    return folder / f"step-{step:010}.ckpt"


def log_rows(path):
    """Rows of steps and rows of epochs, without the time of writing. A killed training writes some steps again: the last row counts."""
    rows = {"step": {}, "epoch": {}}
    with open(path, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            del row["time"]
            rows["epoch" if row.get("test_accuracy") else "step"][int(row["step"])] = row
    return list(rows["step"].values()), list(rows["epoch"].values())


def untimed(path):
    timed = ("seconds", "images_per_s", "peak_bytes")
    return [[{k: v for k, v in row.items() if k not in timed} for row in rows] for rows in log_rows(path)]


def read_safetensors(path):
    """Entries as (dtype, shape, bytes) by name, and the metadata."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    metadata = header.pop("__metadata__", {})
    return {name: (e["dtype"], e["shape"], data[8 + size + e["data_offsets"][0]:8 + size + e["data_offsets"][1]])
            for name, e in header.items()}, metadata


def write_safetensors(path, tensors, metadata):
    """As Python's safetensors writes them: by dtype, widest first, then by name."""
    width = {"I64": 8, "F32": 4}
    header, parts, at = {"__metadata__": metadata}, [], 0
    for name in sorted(tensors, key=lambda n: (-width[tensors[n][0]], n)):
        dtype, shape, values = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(values)]}
        parts.append(values)
        at += len(values)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def learns(folder, out):
    cases = [["--precision", p] for p in ("fp32", "bf16", "fp16")] + [["--opt-level", level] for level in ("O0", "O1", "O2", "O3")]
    cases += [["--opt-level", "O2", "--keep-batchnorm", "no"], ["--opt-level", "O3", "--keep-batchnorm", "yes"],
              ["--opt-level", "O2", "--loss-scale", "128"]]
    firsts = []
    for case in cases:
        log = out / "run.csv"
        output = run("--data", folder, *SMALL, "--epochs", 2, "--lr", 0.05, "--log-every", 1, "--log", log, *case, "--save", out / "w.safetensors").stdout
        steps, epochs = log_rows(log)
        losses = [float(row["loss"]) for row in steps]
        firsts.append(losses[0])
        check(len(steps) == 20 and sum(losses[-3:]) < 0.7 * sum(losses[:3]), f"{case}: losses {losses}")
        check([int(row["step"]) for row in steps] == list(range(1, 21)) and len(epochs) == 2, f"{case}: rows")
        scaled = case[1] in ("fp16", "O1", "O2", "O3")
        check(all(bool(row.get("scale")) == scaled for row in steps), f"{case}: scale {steps[0].get('scale')!r}")
        if case[1] == "O3" or "128" in case:
            check({row["scale"] for row in steps} == {"128" if "128" in case else "1"}, f"{case}: static scale")
        check(0 <= float(epochs[-1]["test_accuracy"]) <= 1 and float(epochs[-1]["images_per_s"]) > 0
              and int(epochs[-1]["peak_bytes"]) > 1e6, f"{case}: {epochs[-1]}")
        mean = sum(losses[10:]) / 10
        check(abs(float(epochs[1]["train_loss"]) - mean) < 1e-4, f"{case}: the epoch's loss {epochs[1]['train_loss']} is the mean of its steps', {mean}")
        check("test accuracy" in output, f"{case}: {output}")
        dtypes = {name: entry[0] for name, entry in read_safetensors(out / "w.safetensors")[0].items()}
        low = case[1] in ("O2", "O3")
        keep = "F32" if not low or (case[1] == "O2" and "no" not in case) or "yes" in case else "F16"
        check(dtypes["layer1.0.conv1.weight"] == ("F16" if low else "F32") and dtypes["layer1.0.bn1.running_var"] == keep, f"{case}: {dtypes}")
    check(max(firsts) - min(firsts) < 0.05, f"the first losses of all agree: {firsts}")


def predicts(folder, out):
    generator = random.Random(8)
    run("--data", folder, *SMALL, "--epochs", 8, "--lr", 0.1, "--no-augment", "--save", out / "net.safetensors")
    files = []
    for label in (3, 8):
        files.append(out / f"{label}.png")
        files[-1].write_bytes(png(picture(label, generator)))
    result = run("--weights", out / "net.safetensors", "--epochs", 0, "--predict", *files, "--device", "cpu")
    lines = [line.split("\t") for line in result.stdout.splitlines() if "\t" in line]
    check([line[0] for line in lines] == [CLASSES[3], CLASSES[8]] and [line[2] for line in lines] == [str(f) for f in files],
          f"classes: {result.stdout}")
    check(all(0.1 < float(line[1]) <= 1 for line in lines), f"probabilities: {lines}")
    metadata = read_safetensors(out / "net.safetensors")[1]
    check(metadata["classes"].split("\n") == CLASSES and metadata["image_size"] == "32", f"metadata: {metadata}")
    check([metadata.get(key) for key in ("model", "stem", "shortcut")] == ["resnet8", "cifar", "padding"], f"metadata: {metadata}")


def trains_on_folders(_, out):
    """Two classes of image files of different sizes."""
    generator = random.Random(4)
    for part, count in (("train", 24), ("val", 8)):
        for name, label in (("stripes", 1), ("bars", 9)):
            folder = out / "files" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                rows = picture(label, generator)[:32 - i % 3]
                (folder / f"{i}.png").write_bytes(png(rows))
    output = run("--data", out / "files", *without(SMALL, "--batch"), "--image-size", 32, "--epochs", 6, "--lr", 0.1, "--batch", 8, "--no-augment",
                 "--save", out / "folder.safetensors", "--predict", out / "files/val/bars/0.png", "--checkpoints", out / "run").stdout
    check("test accuracy 100.00 %" in output and output.splitlines()[-1].startswith("bars\t"), output)
    (out / "moved").symlink_to(out / "files")
    output = run("--data", out / "moved", *without(SMALL, "--batch"), "--image-size", 32, "--epochs", 6, "--lr", 0.1, "--batch", 8, "--no-augment",
                 "--checkpoints", out / "run", "--resume").stdout
    check("resumed at epoch 7" in output, f"the same images by another path: {output}")
    # Weights of two classes as the start of a training for ten.
    write_cifar(out, 40, 20)
    output = run("--data", out, *SMALL, "--epochs", 1, "--weights", out / "folder.safetensors").stdout
    check("fc.weight" in output and "test accuracy" in output, f"another number of classes: {output}")


def last_layer_in_float8(_, out):
    """With 16 classes the products of the last layer are in float8, with 12 everything is in bf16."""
    generator = random.Random(6)
    for classes, differs in ((16, True), (12, False)):
        for part, count in (("train", 2), ("val", 1)):
            for label in range(classes):
                folder = out / f"{classes}" / part / f"{label:02}"
                folder.mkdir(parents=True)
                for i in range(count):
                    (folder / f"{i}.png").write_bytes(png(picture(label, generator)))
        losses = {}
        for precision in ("bf16", "fp8"):
            log = out / f"{classes}-{precision}.csv"
            run("--data", out / f"{classes}", *without(SMALL, "--batch"), "--image-size", 32, "--epochs", 1, "--batch", 16, "--log-every", 1, "--log", log,
                "--precision", precision)
            losses[precision] = [float(row["loss"]) for row in log_rows(log)[0]]
        check((losses["bf16"] != losses["fp8"]) == differs, f"{classes} classes: {losses}")
        check(max(abs(a - b) for a, b in zip(losses["bf16"], losses["fp8"])) < 0.5, f"{classes} classes: {losses}")


def keeps_torchvision_names(_, out):
    """All 320 entries of a ResNet50 as another program wrote them come out again bit for bit."""
    names = {"conv1.weight": [64, 3, 7, 7], "fc.weight": [1000, 2048], "fc.bias": [1000]}

    def norm(name, size):
        names.update({f"{name}.{field}": [size] for field in ("weight", "bias", "running_mean", "running_var")})
        names[name + ".num_batches_tracked"] = []
    norm("bn1", 64)
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for i in range(blocks):
            block = f"layer{stage + 1}.{i}."
            for part, shape in (("1", [width, channels, 1, 1]), ("2", [width, width, 3, 3]), ("3", [4 * width, width, 1, 1])):
                names[f"{block}conv{part}.weight"] = shape
                norm(f"{block}bn{part}", shape[0])
            if i == 0:
                names[block + "downsample.0.weight"] = [4 * width, channels, 1, 1]
                norm(block + "downsample.1", 4 * width)
            channels = 4 * width
    check(len(names) == 320, f"{len(names)} names")
    tensors, seed = {}, 0
    for name, shape in names.items():
        count = 1
        for n in shape:
            count *= n
        if name.endswith("tracked"):
            tensors[name] = ("I64", shape, struct.pack("<q", 77 + seed))
        else:
            tensors[name] = ("F32", shape, array.array("f", (x / 65536 for x in range(seed, seed + count))).tobytes())
        seed += 17
    metadata = {"format": "pt", "model": "resnet50", "stem": "imagenet", "shortcut": "projection", "classes": "\n".join(f"c{i}" for i in range(1000)), "image_size": "224", "mean": "0.5 0.5 0.5",
                "stddev": "0.25 0.25 0.25"}
    write_safetensors(out / "theirs.safetensors", tensors, metadata)
    write_safetensors(out / "theirs.safetensors", tensors, {k: v for k, v in metadata.items() if k not in ("model", "stem", "shortcut")})
    run("--model", "resnet50", "--weights", out / "theirs.safetensors", "--epochs", 0, "--save", out / "ours.safetensors", "--device", "cpu")
    ours, own_metadata = read_safetensors(out / "ours.safetensors")
    different = [name for name in tensors if ours.get(name) != (tensors[name][0], tensors[name][1], tensors[name][2])]
    check(len(ours) == 320 and not different, f"{len(different)} of {len(ours)} entries differ, such as {different[:3]}")
    check({k: v for k, v in own_metadata.items() if not k.startswith("mezzo.")} == metadata, "metadata")
    write_safetensors(out / "theirs.safetensors", tensors, metadata)
    write_safetensors(out / "again.safetensors", ours, metadata)
    check((out / "again.safetensors").read_bytes() == (out / "theirs.safetensors").read_bytes(), "the file as Python would write it")


def survives_kills(folder, out):
    for case in (["--precision", "fp16"], ["--opt-level", "O2"]):
        training = ["--data", folder, *SMALL, "--epochs", 4, *case, "--checkpoint-every", 3, "--log-every", 2]
        whole, killed = out / f"whole-{case[1]}", out / f"killed-{case[1]}"
        run(*training, "--save", f"{whole}.safetensors", "--checkpoints", whole, "--log", f"{whole}.csv", "--tensorboard", f"{whole}-events")
        files = ["--save", f"{killed}.safetensors", "--checkpoints", killed, "--log", f"{killed}.csv", "--resume"]
        kills = kill_and_resume([*training, *files], checkpoint_of(killed, 3), 0.05, killed)
        check(pathlib.Path(f"{whole}.safetensors").read_bytes() == pathlib.Path(f"{killed}.safetensors").read_bytes(),
              f"{case}: weights after {kills} kills differ from those of the uninterrupted run")
        same_logs(whole, killed)
        events = list(pathlib.Path(f"{whole}-events").iterdir())
        check(len(events) == 1 and b"test_accuracy" in events[0].read_bytes(), f"--tensorboard: {events}")
    refuses_other_settings(training, killed)


def same_logs(whole, killed):
    for kind, one, other in zip(("steps", "epochs"), untimed(f"{whole}.csv"), untimed(f"{killed}.csv")):
        check(one == other, f"{killed}: the logs differ in {kind}: {len(one)} and {len(other)} rows"
              + "".join(f"\n  {a}\n  {b}" for a, b in zip(one, other) if a != b))


def survives_kills_before_an_evaluation(folder, out):
    """A checkpoint after an epoch's last batch, from which only the evaluation is missing; one of 1,000 images leaves time to kill it,
    unless this process gets no processor: then it is tried again."""
    data = out / "evaluation"
    data.mkdir()
    for file in folder.glob("*.bin"):
        (data / file.name).write_bytes(file.read_bytes() * (25 if file.name.startswith("test") else 1))
    training = ["--data", data, *SMALL, "--epochs", 2, "--checkpoint-every", 5, "--log-every", 3]
    whole, killed = out / "whole", out / "killed"
    run(*training, "--save", f"{whole}.safetensors", "--checkpoints", whole, "--log", f"{whole}.csv")
    command = [*training, "--save", f"{killed}.safetensors", "--checkpoints", killed, "--log", f"{killed}.csv", "--resume"]
    killed.mkdir()
    for step in (10, 20):
        before = {file.name: file.read_bytes() for file in killed.iterdir()}
        for _ in range(30):
            if killed_at([PROGRAM, *map(str, command)], checkpoint_of(killed, step)):
                break
            for file in killed.iterdir():
                file.unlink()
            for name, data in before.items():
                (killed / name).write_bytes(data)
        else:
            check(False, f"no evaluation after step {step} is met")
    refuses_damaged_positions(command, checkpoint_of(killed, 20))
    run(*command)
    same_logs(whole, killed)
    check(pathlib.Path(f"{whole}.safetensors").read_bytes() == pathlib.Path(f"{killed}.safetensors").read_bytes(), "the weights differ")


def killed_at(command, checkpoint):
    """Whether a training was killed after it had written this checkpoint, and before its evaluation ended."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not checkpoint.exists():
            time.sleep(0.001)
        process.kill()
        output = process.communicate()[0]
        return process.returncode == -9 and f"epoch {int(checkpoint.stem[5:]) // 10}: loss" not in output


def refuses_damaged_positions(command, checkpoint):
    """Counters that no training can have: epoch, step, batch and evaluations without a best one."""
    before = checkpoint.read_bytes()
    size = struct.unpack("<Q", before[:8])[0]
    header = json.loads(before[8:8 + size])
    at = 8 + size + next(e for n, e in header.items() if n.endswith("trainer.progress"))["data_offsets"][0]
    for values in ((-1, 20, 10, 0), (1, 2.5, 10, 0), (1, 20, 2e16, 0), (1, 20, float("nan"), 0)):
        checkpoint.write_bytes(without_digests(before[:at] + struct.pack("<4d", *values) + before[at + 32:]))
        check("of its state is" in run(*command, expect=1).stderr, f"position {values}")
    checkpoint.write_bytes(before)


def without_digests(data):
    """The same file with a header that has no digests of the entries, which a file of another program has not."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header["__metadata__"] = {k: v for k, v in header.get("__metadata__", {}).items() if not k.startswith("mezzo.crc32")}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + size:]


def refuses_other_settings(training, checkpoints):
    before = {file.name: file.read_bytes() for file in checkpoints.iterdir()}
    resume = [*training, "--checkpoints", checkpoints, "--resume"]
    for name, then, now in (("--batch", 20, 10), ("--lr", 0.15, 0.2), ("--momentum", 0.9, 0.8), ("--epochs", 4, 5), ("--seed", 1, 2),
                            ("--weight-decay", 0.0005, 0.001), ("--schedule", "cosine", "steps"), ("--shortcut", "padding", "projection"),
                            ("--warmup", 0, 0.5), ("--label-smoothing", 0, 0.1), ("--max-steps", 0, 9), ("--keep-batchnorm", "", "no")):
        message = run(*without(resume, name), name, now, expect=1).stderr
        check(f"  {name}: {then}, now {now}\n" in message, f"{name}: {message}")
    check("--precision or --opt-level: O2, now O3" in run(*without(resume, "--opt-level"), "--opt-level", "O3", expect=1).stderr, "--opt-level")
    check("--augment: true, now false" in run(*resume, "--no-augment", expect=1).stderr, "--no-augment")
    check("training data: 200 images" in run(*resume, "--limit", 100, expect=1).stderr, "other data")
    check({file.name: file.read_bytes() for file in checkpoints.iterdir()} == before, "a refused resumption has written the checkpoint")


def explains_errors(folder, out):
    def fails(text, *arguments, code=1):
        result = run(*arguments, expect=code)
        check(text in result.stderr and result.stderr.startswith("resnet: ") == (code == 1), f"wanted \"{text}\", got: {result.stderr}")
        check("epoch 1" not in result.stdout, f"{text}: after {result.stdout}")

    data = ["--data", folder, *SMALL]
    (out / "nothing here").mkdir()
    (out / "text.png").write_text("no image")
    (out / "labels").mkdir()
    write_cifar(out / "labels", 4, 2)
    broken = bytearray((out / "labels/data_batch_1.bin").read_bytes())
    broken[3073] = 11
    (out / "labels/data_batch_1.bin").write_bytes(broken)
    (out / "damaged").mkdir()
    checkpoint_of(out / "damaged", 7).write_bytes(b"damaged")
    fails("--data: ", "--data", out / "none", *SMALL)
    fails("has neither a folder train nor the files of CIFAR-10", "--data", out / "nothing here", *SMALL)
    fails("data_batch_1.bin", "--data", out / "labels", *SMALL)
    fails("--image-size: CIFAR-10 has images of 32 x 32", *data, "--image-size", 64)
    fails("text.png", *data, "--predict", out / "text.png")
    fails("none.png", *data, "--predict", out / "none.png")
    fails("--checkpoints: ", *data, "--checkpoints", out / "text.png")
    fails("--tensorboard: ", *data, "--tensorboard", out / "text.png/events")
    fails("--save: ", *data, "--save", out)
    fails("--log: ", *data, "--log", out / "none/log.csv")
    fails("step-0000000007.ckpt", *data, "--checkpoints", out / "damaged", "--resume")
    fails("has checkpoints; set .resume", *data, "--checkpoints", out / "killed-O2")
    fails("text.png", *data, "--weights", out / "text.png")
    weights = ["--weights", out / "net.safetensors", "--epochs", 0, "--predict", out / "3.png"]
    fails("--model: resnet20, but the weights in ", "--model", "resnet20", *weights)
    fails("are of padding", "--shortcut", "projection", *weights)
    tensors, metadata = read_safetensors(out / "net.safetensors")
    write_safetensors(out / "other.safetensors", tensors, {key: metadata[key] for key in ("classes", "image_size", "mean", "stddev")})
    fails("names are missing", "--model", "resnet20", "--weights", out / "other.safetensors", "--epochs", 0, "--predict", out / "3.png")
    write_safetensors(out / "bare.safetensors", tensors, {"format": "pt"})
    fails("has no names of classes; pass --data", "--model", "resnet8", "--weights", out / "bare.safetensors", "--epochs", 0, "--predict", out / "3.png")
    (out / "half/train").mkdir(parents=True)
    fails("has a folder train, but neither val nor test", "--data", out / "half", *SMALL)
    fails("--resume", *data, "--resume", code=2)
    fails("--opt-level", *data, "--opt-level", "O4", code=2)
    fails("--opt-level", *data, "--opt-level", "O1", "--precision", "bf16", code=2)
    fails("--keep-batchnorm", *data, "--keep-batchnorm", "yes", code=2)
    fails("--keep-batchnorm", *data, "--opt-level", "O1", "--keep-batchnorm", "yes", code=2)
    fails("--loss-scale", *data, "--opt-level", "O2", "--loss-scale", "much", code=2)
    fails("--model", *data, "--model", "resnet19", code=2)
    fails("--epochs", *data, "--epochs", 0, code=2)


run_parts((learns, predicts, trains_on_folders, last_layer_in_float8, keeps_torchvision_names, survives_kills, survives_kills_before_an_evaluation,
           explains_errors), write_cifar)
finish()
