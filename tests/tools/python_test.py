#!/usr/bin/env python3
"""Uses the Python module: models from files, on NumPy's arrays. Skipped where no interpreter has NumPy.

    python_test.py path/to/the/module.so
"""
import gc
import json
import os
import pathlib
import sys
import tempfile
import threading
import weakref

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "interop"))
from interpreter import need  # noqa: E402

numpy, = need("numpy")
sys.path.insert(0, str(pathlib.Path(sys.argv[1]).resolve().parent))
import mezzo  # noqa: E402

RANDOM = numpy.random.default_rng(1)


def noise(*shape, scale=0.3):
    return (scale * RANDOM.standard_normal(shape)).astype("float32")


def fails(kind, text, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError(f"no {kind.__name__} with {text}")


def check_arrays(folder):
    """Every dtype there and back, in memory of any order."""
    path = str(folder / "arrays.safetensors")
    given = {name: RANDOM.integers(0, 2 if name == "bool" else 100, (3, 4)).astype(name)
             for name in ("float16", "float32", "float64", "int32", "int64", "uint8", "int8", "bool")}
    given |= {"by columns": numpy.asfortranarray(noise(2, 3)), "big-endian": noise(2).astype(">f4"), "one": numpy.float32(3) * numpy.ones(()),
              "every second": noise(8)[::2]}
    mezzo.save_safetensors(path, given)
    back = mezzo.load_safetensors(path)
    assert set(back) == set(given)
    for name, array in given.items():
        assert back[name].dtype == array.dtype.newbyteorder("=") and (back[name] == array).all(), name
    alive = back["float32"].copy(), back["float32"]
    del back
    gc.collect()
    assert (alive[0] == alive[1]).all()
    fails(TypeError, "mezzo has no dtype int16", mezzo.save_safetensors, path, {"a": numpy.zeros(2, "int16")})
    fails(TypeError, 'NumPy makes no array of "ragged"', mezzo.save_safetensors, path, {"ragged": [[1], [2, 3]]})
    fails(mezzo.Error, "no.safetensors", mezzo.load_safetensors, str(folder / "no.safetensors"))
    fails(TypeError, "save_safetensors: the name 1 is no text", mezzo.save_safetensors, path, {1: noise(2)})
    fails(TypeError, "the name 'a\\ud800' is no text", mezzo.save_safetensors, path, {"a\ud800": noise(2)})
    fails(TypeError, "the metadata 3 is no text", mezzo.save_safetensors, path, {}, {"epochs": 3})


def check_paths(folder):
    """Paths as objects, and names of files that are no UTF-8."""
    for name in ("mlp.safetensors", os.fsdecode(b"mlp\xff.safetensors")):
        path = folder / name
        mezzo.save_safetensors(path, {"0.weight": noise(2, 3)})
        assert list(mezzo.load_safetensors(path)) == ["0.weight"]
        assert mezzo.load(path)(noise(5, 3)).shape == mezzo.load(str(path))(noise(5, 3)).shape == (5, 2)
        fails(mezzo.Error, "cannot open", mezzo.load, folder / f"no {name}")
        fails(mezzo.Error, "cannot open", mezzo.load, path, config=folder / f"no {name}")


def check_mlp(folder):
    path = str(folder / "mlp.safetensors")
    first, second, bias = noise(16, 6), noise(3, 16), noise(16)
    mezzo.save_safetensors(path, {"1.weight": first, "1.bias": bias, "3.weight": second})
    model = mezzo.load(path)
    assert repr(model).count("Linear") == 2 and "Flatten" in repr(model) and "ReLU" in repr(model)
    x = noise(5, 2, 3)
    expected = numpy.maximum(x.reshape(5, 6) @ first.T + bias, 0) @ second.T
    assert numpy.allclose(model(x), expected, atol=1e-5)
    assert numpy.allclose(model(x.astype("float64")), expected, atol=1e-5)
    assert numpy.allclose(mezzo.load(path, activation="tanh")(x), numpy.tanh(x.reshape(5, 6) @ first.T + bias) @ second.T, atol=1e-5)
    fails(mezzo.Error, "linear: input [5, 7]", model, noise(5, 7))
    fails(mezzo.Error, "known are relu, gelu, tanh and silu", mezzo.load, path, activation="cosine")
    fails(mezzo.Error, "are for models that read texts", model, x, attention_mask=x)
    fails(TypeError, "incompatible function arguments", mezzo.load)
    # The model's own memory, and lives without it; the input is given back.
    weights = model.state_dict()
    weights["3.weight"][:] = 0
    assert not model(x).any()
    result, seen = model(x), weakref.ref(x)
    del model, x
    gc.collect()
    assert seen() is None and result.shape == (5, 3) and weights["1.weight"].shape == (16, 6)
    mezzo.save_safetensors(path, {"layer.weight": first})
    fails(mezzo.Error, "has layer.weight [16, 6], which is no part of", mezzo.load, path)
    mezzo.save_safetensors(path, {})
    fails(mezzo.Error, "has no tensors, and so no model", mezzo.load, path)
    fails(mezzo.Error, "cannot open", mezzo.load, "x" * 300)  # longer than a name of a file may be


def bert_weights(hidden, inner, words, classes):
    shapes = {"embeddings.word_embeddings.weight": (words, hidden), "embeddings.position_embeddings.weight": (12, hidden),
              "embeddings.token_type_embeddings.weight": (2, hidden), "embeddings.LayerNorm.weight": (hidden,), "embeddings.LayerNorm.bias": (hidden,)}
    for name, (out, inputs) in {"attention.self.query": (hidden, hidden), "attention.self.key": (hidden, hidden), "attention.self.value": (hidden, hidden),
                                "attention.output.dense": (hidden, hidden), "intermediate.dense": (inner, hidden), "output.dense": (hidden, inner)}.items():
        shapes |= {f"encoder.layer.0.{name}.weight": (out, inputs), f"encoder.layer.0.{name}.bias": (out,)}
    for name in ("attention.output", "output"):
        shapes |= {f"encoder.layer.0.{name}.LayerNorm.{part}": (hidden,) for part in ("weight", "bias")}
    shapes |= {"pooler.dense.weight": (hidden, hidden), "pooler.dense.bias": (hidden,)}
    shapes = {"bert." + name: shape for name, shape in shapes.items()} | {"classifier.weight": (classes, hidden), "classifier.bias": (classes,)}
    return {name: noise(*shape) for name, shape in shapes.items()}


def check_other_texts(folder, config, weights):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    path, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    shards = {name: "a.safetensors" if name < "bert.m" else "b.safetensors" for name in weights}
    for shard in set(shards.values()):
        mezzo.save_safetensors(folder / shard, {name: weights[name] for name in weights if shards[name] == shard})
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}), encoding="utf-8")
    assert mezzo.load(folder)(numpy.ones((1, 3), "int64")).shape == (1, 3)
    mezzo.save_safetensors(path, {name: x for name, x in weights.items() if not name.startswith("classifier")})
    fails(mezzo.Error, "is a BERT without a classifier", mezzo.load, folder)
    mezzo.save_safetensors(path, {name.removeprefix("bert."): x for name, x in weights.items() if name.startswith("bert.")})
    fails(mezzo.Error, "is a BERT without a classifier", mezzo.load, folder)
    mezzo.save_safetensors(path, {name.replace("bert.", "roberta."): x for name, x in weights.items()})
    fails(mezzo.Error, "is a model of the type roberta", mezzo.load, folder)
    mezzo.save_safetensors(path, {"0.weight": numpy.ones((2, 2))})
    assert mezzo.load(folder)(numpy.ones((1, 2))).shape == (1, 2)


def check_metadata(folder):
    path = folder / "m.safetensors"
    for metadata, stored in ((None, {"format": "pt"}), ({"format": "np", "a": "b"}, {"format": "np", "a": "b"}), ({"format": "pt"}, {"format": "pt"})):
        mezzo.save_safetensors(path, {"x": numpy.ones(2)}, metadata=metadata)
        data = path.read_bytes()
        found = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        assert {name: text for name, text in found.items() if not name.startswith("mezzo.crc32.")} == stored, found
        assert (mezzo.load_safetensors(path)["x"] == 1).all()


def check_bert(folder):
    config = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 12}
    weights = bert_weights(16, 32, 30, 3)
    mezzo.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model = mezzo.load(str(folder))
    ids = RANDOM.integers(1, 30, (2, 7))
    logits = model(ids)
    assert logits.shape == (2, 3) and logits.dtype == numpy.float32 and numpy.isfinite(logits).all()
    assert (model(ids.astype("int32")) == logits).all()
    # Padding that is masked changes nothing, whatever it is; token types do.
    longer = numpy.concatenate([ids, RANDOM.integers(1, 30, (2, 3))], 1)
    mask = numpy.arange(10)[None] < numpy.array([[7], [7]])
    for one in (mask, mask.astype("int64")):
        assert numpy.allclose(model(longer, attention_mask=one), logits, atol=1e-5)
    assert numpy.abs(model(longer) - logits).max() > 1e-3
    assert numpy.abs(model(ids, token_type_ids=numpy.ones_like(ids)) - logits).max() > 1e-3
    fails(mezzo.Error, "Bert: length 13 is outside 1 to 12", model, numpy.ones((1, 13), "int64"))
    fails(mezzo.Error, "embedding", model, numpy.full((1, 3), 30))
    check_other_texts(folder / "other", config, weights)
    del weights["bert.pooler.dense.bias"]
    mezzo.save_safetensors(str(folder / "model.safetensors"), weights)
    fails(mezzo.Error, "bert.pooler.dense.bias", mezzo.load, str(folder))


def resnet8_weights():
    weights, inputs = {}, 3

    def layer(name, norm, out, of):
        weights[name + ".weight"] = noise(out, of, 3, 3, scale=0.1)
        weights.update({f"{norm}.{part}": numpy.abs(noise(out)) + 0.5 for part in ("weight", "bias", "running_mean", "running_var")})
        weights[norm + ".num_batches_tracked"] = numpy.array(1)

    layer("conv1", "bn1", 16, inputs)
    inputs = 16
    for stage, width in enumerate((16, 32, 64), 1):
        layer(f"layer{stage}.0.conv1", f"layer{stage}.0.bn1", width, inputs)
        layer(f"layer{stage}.0.conv2", f"layer{stage}.0.bn2", width, width)
        inputs = width
    return weights | {"fc.weight": noise(5, 64), "fc.bias": noise(5)}


def check_resnet(folder):
    path = str(folder / "resnet.safetensors")
    weights = resnet8_weights()
    metadata = {"model": "resnet8", "stem": "cifar", "shortcut": "padding"}
    mezzo.save_safetensors(path, weights, metadata)
    model = mezzo.load(path)
    images = noise(3, 8, 8, 3, scale=1)
    logits = model(images)
    assert logits.shape == (3, 5)
    assert numpy.allclose(model(images[1:2]), logits[1:2], atol=1e-5)
    state = model.state_dict()
    assert state["conv1.weight"].shape == (16, 3, 3, 3) and (state["conv1.weight"] == weights["conv1.weight"]).all()
    weights["fc.bias"] = weights["fc.bias"] + 1
    mezzo.save_safetensors(path, weights, metadata)
    assert numpy.allclose(mezzo.load(path)(images), logits + 1, atol=1e-5)
    fails(mezzo.Error, "images must be [batch, height, width, 3]", model, images[..., :2])


def check_threads(folder):
    """The interpreter's lock is free while a model runs."""
    path = str(folder / "wide.safetensors")
    mezzo.save_safetensors(path, {f"{2 * i}.weight": noise(512, 512, scale=0.05) for i in range(6)})
    model, x = mezzo.load(path), noise(8192, 512)
    mezzo.set_num_threads(1)
    counts, results = [], []
    while not counts or (counts[-1] <= 20 and len(counts) < 50):  # this thread may get no processor while the other computes
        thread = threading.Thread(target=lambda: results.append(model(x)))
        thread.start()
        counts.append(0)
        while thread.is_alive():
            counts[-1] += 1
            thread.join(0.001)
    assert counts[-1] > 20, counts
    assert (model(x) == results[0]).all()


def main():
    for check in (check_arrays, check_paths, check_mlp, check_metadata, check_bert, check_resnet, check_threads):
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))
        print(check.__name__, "passed", flush=True)


main()
