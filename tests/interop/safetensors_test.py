#!/usr/bin/env python3
"""Takes ResNet50's weights under torchvision's 320 names through Python's safetensors package, samples/resnet and the package again:
every byte must come back. Skipped where neither this interpreter nor the one that MEZZO_INTEROP_PYTHON names has the package.

    safetensors_test.py path/to/resnet
"""
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import safetensors.numpy
except ImportError:
    interpreter = os.environ.pop("MEZZO_INTEROP_PYTHON", "")
    if interpreter:
        os.execv(interpreter, [interpreter, *sys.argv])
    print("skipped: Python has no safetensors; MEZZO_INTEROP_PYTHON may name an interpreter that has")
    sys.exit(77)

PROGRAM = sys.argv[1]
CLASSES = 10


def convolution(shapes, name, norm, out, inputs, size):
    shapes[name + ".weight"] = (out, inputs, size, size)
    shapes.update({f"{norm}.{part}": (out,) for part in ("weight", "bias", "running_mean", "running_var")})
    shapes[norm + ".num_batches_tracked"] = ()


def resnet50_shapes():
    """Written down from torchvision's naming, not from mezzo's."""
    shapes, inputs = {}, 64
    convolution(shapes, "conv1", "bn1", 64, 3, 7)
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], 1):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}"
            for i, (out, of, size) in enumerate([(width, inputs, 1), (width, width, 3), (4 * width, width, 1)], 1):
                convolution(shapes, f"{prefix}.conv{i}", f"{prefix}.bn{i}", out, of, size)
            if block == 0:
                convolution(shapes, prefix + ".downsample.0", prefix + ".downsample.1", 4 * width, inputs, 1)
            inputs = 4 * width
    shapes.update({"fc.weight": (CLASSES, inputs), "fc.bias": (CLASSES,)})
    return shapes


def random_weights():
    generator = numpy.random.default_rng(1)
    return {name: numpy.array(generator.integers(1 << 40)) if name.endswith("tracked")
            else generator.standard_normal(shape, dtype=numpy.float32) for name, shape in resnet50_shapes().items()}


def save_with_mezzo(folder, source, target):
    data = folder / "cifar"
    data.mkdir()
    images = numpy.random.default_rng(2).integers(0, 256, (20, 3073), dtype=numpy.uint8)
    images[:, 0] %= CLASSES
    for name in ("train.bin", "test.bin"):
        images.tofile(data / name)
    subprocess.run([PROGRAM, "--weights", source, "--model", "resnet50", "--stem", "imagenet", "--epochs", "0", "--data", data, "--save", target,
                    "--threads", "1", "--device", "cpu"], check=True, stdin=subprocess.DEVNULL, timeout=300)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        first, second, third = (folder / f"{i}.safetensors" for i in (1, 2, 3))
        weights = random_weights()
        assert len(weights) == 320, len(weights)
        safetensors.numpy.save_file(weights, first)
        save_with_mezzo(folder, first, second)
        safetensors.numpy.save_file(safetensors.numpy.load_file(second), third)
        if first.read_bytes() == third.read_bytes():
            return 0
        back = safetensors.numpy.load_file(second)
        wrong = [n for n in sorted(weights.keys() | back.keys()) if n not in weights or n not in back or weights[n].tobytes() != back[n].tobytes()]
        print("FAILED: other bytes came back:", ", ".join(wrong[:10]) or "in the header")
        return 1


sys.exit(main())
