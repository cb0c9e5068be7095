#!/usr/bin/env python3
"""Runs models that mezzo has exported with onnxruntime: onnx's checker accepts the files, and results agree with mezzo's, also for
batches of other sizes than the exported one. Skipped where no interpreter has the packages.

    onnx_test.py path/to/libinterop_bridge.so [case ...]
"""
import ctypes
import pathlib
import sys
import tempfile

from interpreter import need

numpy, onnx, onnxruntime = need("numpy", "onnx", "onnxruntime")

FIXED = {"lstm"}  # exported with a fixed batch
NAMES = {"mlp": (["features"], ["logits"]), "bert_mask": (["input_ids", "attention_mask", "token_type_ids"], ["output"])}
OPERATORS = {  # a few that must be there, and how often; 0: none
    "mlp": {"Gemm": 4, "Relu": 1, "Erf": 1, "LayerNormalization": 1, "Transpose": 0, "Dropout": 0},
    "resnet18": {"Conv": 20, "BatchNormalization": 20, "MaxPool": 1, "GlobalAveragePool": 1, "Reshape": 1},
    "bert_mask": {"LayerNormalization": 5, "Softmax": 2, "Erf": 2, "Gather": 9},
}
WEIGHTS = {  # names and shapes of initializers, which are those of state_dict()
    "mlp": {"0.weight": [32, 12], "0.bias": [32], "7.weight": [16]},
    "resnet18": {"conv1.weight": [64, 3, 7, 7], "layer2.0.downsample.0.weight": [128, 64, 1, 1], "layer4.1.bn2.running_var": [512]},
    "bert_mask": {"bert.encoder.layer.1.attention.self.query.weight": [32, 32], "classifier.bias": [3]},
}


def arrays(folder, what, run):
    found = []
    while (path := folder / f"{what}{run}_{len(found)}.npy").exists():
        found.append(numpy.load(path))
    return found


def check_close(name, run, index, got, wanted):
    assert got.shape == wanted.shape and got.dtype == wanted.dtype, (name, run, index, got.shape, got.dtype, wanted.shape, wanted.dtype)
    if got.dtype != numpy.float32:
        assert (got == wanted).all(), (name, run, index)
        return 0.0
    scale = float(numpy.abs(wanted).max()) or 1.0
    error = float(numpy.abs(got - wanted).max()) / scale
    assert error < 2e-5, f"{name}: output {index} of run {run} differs by {error:.2g} of its largest element"
    return error


def check_external(folder):
    """The large tensors are in the other file, each at the start of a page; small ones are not."""
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    places = {tensor.name: {entry.key: entry.value for entry in tensor.external_data} for tensor in model.graph.initializer}
    assert places["0.weight"] == {"location": "model.onnx.data", "offset": "0", "length": "3072"}, places
    assert places["2.weight"] == {"location": "model.onnx.data", "offset": "4096", "length": "12288"}, places
    assert places["0.bias"] == places["4.weight"] == {}, places
    assert (folder / "model.onnx.data").stat().st_size == 4096 + 12288


def check_structure(name, model):
    counts = {}
    for node in model.graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    for operator, count in OPERATORS.get(name, {}).items():
        assert counts.get(operator, 0) == count, (name, operator, counts)
    shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    for weight, shape in WEIGHTS.get(name, {}).items():
        assert shapes.get(weight) == shape, (name, weight, shapes.get(weight))
    if name in NAMES:
        assert ([x.name for x in model.graph.input], [x.name for x in model.graph.output]) == NAMES[name]
    for value in model.graph.input:
        size = value.type.tensor_type.shape.dim[0]
        assert (size.dim_param == "batch") == (name not in FIXED), (name, size)
    assert model.opset_import[0].version == 17 and model.producer_name == "mezzo"


def check_case(bridge, index, name):
    with tempfile.TemporaryDirectory() as path:
        assert bridge.write_onnx_case(index, path.encode()) == 0, f"{name}: {bridge.onnx_error().decode()}"
        folder = pathlib.Path(path)
        model = onnx.load(folder / "model.onnx")
        onnx.checker.check_model(model, full_check=True)
        check_structure(name, model)
        if name == "external":
            check_external(folder)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
        run, worst = 0, 0.0
        while given := arrays(folder, "in", run):
            wanted = arrays(folder, "out", run)
            got = session.run(None, {x.name: value for x, value in zip(session.get_inputs(), given, strict=True)})
            assert len(got) == len(wanted)
            worst = max([worst] + [check_close(name, run, i, a, b) for i, (a, b) in enumerate(zip(got, wanted))])
            run += 1
        assert run > 0
    return f"{name}: {len(model.graph.node)} nodes, {run} batches, {len(wanted)} outputs, error {worst:.1e}"


def main():
    bridge = ctypes.CDLL(sys.argv[1])
    bridge.onnx_error.restype = bridge.onnx_case.restype = ctypes.c_char_p
    index = 0
    while (name := bridge.onnx_case(index)) is not None:
        if len(sys.argv) < 3 or name.decode() in sys.argv[2:]:
            print(check_case(bridge, index, name.decode()), flush=True)
        index += 1
    assert index >= 10


main()
