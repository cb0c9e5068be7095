#!/usr/bin/env python3
"""Reads with mezzo what torch.save() writes: kinds of tensors, checkpoints and values, in archives and in the form before PyTorch 1.6,
pickle protocols 2 to 5. Each must have the tensors and values that torch.load() has. Skipped where neither this interpreter nor the one
that MEZZO_INTEROP_PYTHON names has PyTorch.

    pytorch_test.py path/to/libinterop_bridge.so
"""
import collections
import ctypes
import json
import os
import pathlib
import sys
import tempfile
import warnings

from interpreter import need

torch, = need("torch")
warnings.filterwarnings("ignore")

WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
SAFETENSORS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "I32": torch.int32, "I64": torch.int64,
               "U8": torch.uint8, "BOOL": torch.bool, "I8": torch.int8, "F8_E4M3": getattr(torch, "float8_e4m3fn", None),
               "F8_E5M2": getattr(torch, "float8_e5m2", None), "F8_E8M0": getattr(torch, "float8_e8m0fnu", None)}
FLOAT8 = [dtype for name, dtype in SAFETENSORS.items() if name.startswith("F8") and dtype]  # what this PyTorch has


def every_dtype():
    values = torch.tensor([0.0, 1.0, 5.0, 100.0, 63.0, 2.0])
    return {str(dtype): values.to(dtype) for dtype in (
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, *FLOAT8)}


def trained(make):
    """A model, its optimizer after two steps, and the checkpoint that programs write."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    optimizer = make(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    return {"epoch": 3, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "best": 0.25, "note": "é \"quoted\"",
            "rng": torch.get_rng_state()}


def tied():
    net = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 3), "head": torch.nn.Linear(3, 5, bias=False)})
    net["head"].weight = net["embed"].weight
    return net.state_dict()


def with_attribute():
    tensor = torch.arange(4.0)
    tensor.origin = "a file"
    return [tensor]


def parameter_with_attribute():
    parameter = torch.nn.Parameter(torch.arange(3.0))
    parameter.rank = 2
    return {"p": parameter}


def overlapping():
    base = torch.arange(24.0).reshape(4, 6)
    return {"t": base.t(), "rows": base[1:3], "columns": base[:, 2:5:2], "diagonal": base.diagonal(), "row": base[2], "windows": base.flatten().unfold(0, 4, 1),
            "whole": base, "permuted": base.reshape(2, 3, 4).permute(2, 0, 1)}


KINDS = {
    "state_dict": lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).state_dict(),
    "a tensor": lambda: torch.randn(3, 4),
    "every dtype": every_dtype,
    "small unsigned dtypes": lambda: {"u16": torch.arange(3).to(torch.uint16), "u32": torch.tensor([7, 2**32 - 1]).to(torch.uint32),
                                      "u64": torch.tensor([2**62]).to(torch.uint64)},
    "special numbers": lambda: [torch.tensor([float("nan"), -0.0, float("inf"), 1e-45]), torch.tensor([65504.0, 6e-8], dtype=torch.float16)],
    "views": overlapping,
    "expanded": lambda: {"column": torch.arange(3.0).reshape(3, 1).expand(3, 100), "number": torch.ones(()).expand(2, 3)},
    "shared storage": lambda: (lambda x: [x, x[2:], x.view(2, 3), x])(torch.arange(6)),
    "tied weights": tied,
    "parameters": lambda: torch.nn.ParameterDict({"a": torch.nn.Parameter(torch.randn(2)), "b": torch.nn.Parameter(torch.ones(2, 2), False)}).state_dict(),
    "list of parameters": lambda: list(torch.nn.Linear(3, 2).parameters()),
    "empty and 0-dim": lambda: {"none": torch.empty(0), "rows": torch.empty(0, 5), "one": torch.tensor(3.5), "integer": torch.tensor(7), "view": torch.ones(4)[4:]},
    "booleans": lambda: {"mask": torch.rand(5, 7) > 0.5, "strided": (torch.rand(6, 4) > 0.5)[:, ::2]},
    "bfloat16 model": lambda: torch.nn.Linear(7, 5).to(torch.bfloat16).state_dict(),
    "channels last": lambda: {"w": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)},
    "Adam": lambda: trained(lambda p: torch.optim.Adam(p, lr=1e-3, betas=(0.9, 0.95))),
    "SGD": lambda: trained(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "Adagrad in groups": lambda: trained(lambda p: torch.optim.Adagrad([{"params": list(p)[:2], "lr": 0.2}])),
    "scheduler and scaler": lambda: {"scaler": torch.amp.GradScaler("cpu").state_dict(), "counts": collections.Counter("abca"),
                                     "schedule": torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.ones(1)], 0.1), 5).state_dict()},
    "values": lambda: {"none": None, "flags": [True, False], "integers": [0, 255, 256, 65536, -1, -129, 2**31, -2**31 - 1, 2**63 - 1, -2**63],
                       "large": [2**63, -2**70], "reals": [0.0, -1.5, 1e-300, float("inf"), 0.1], "text": "naïve 中", "empty": ["", {}, [], ()],
                       "bytes": b"\x00\xffabc", "array": bytearray(b"xyz\x80"), "tuple": (1, (2, (3,))), "set": {5}, 3: "integer key",
                       "size": torch.Size([2, 3]), "device": torch.device("cuda", 1), "cpu": torch.device("cpu"), "dtype": torch.bfloat16,
                       "layout": torch.strided},
    "long strings and lists": lambda: {"text": "x" * 70000, "list": list(range(3000)), "dict": {str(i): i for i in range(900)}},
    "deep": lambda: {"a": {"b": [{"c": ({"d": torch.ones(2)}, torch.zeros(1))}]}},
    "attributes": with_attribute,
    "a parameter's attributes": parameter_with_attribute,
    "many tensors": lambda: {f"layer.{i}.weight": torch.full((3,), float(i)) for i in range(300)},
    "large": lambda: {"a": torch.randn(300000), "b": torch.randn(700, 500).half()},
}


def flat(value, name=""):
    """Tensors by name, as PytorchValue::state_dict() names them."""
    if isinstance(value, torch.Tensor):
        return {name: value.detach()}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple, set)) else ()
    result = {}
    for key, item in items:
        result.update(flat(item, f"{name}.{key}" if name else str(key)))
    return result


def quoted(text):
    if len(text.encode()) > 120:
        return None
    return json.dumps(text, ensure_ascii=False)


def line(value):
    """A value as PytorchValue::to_string() writes it; None where it is cut."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]} {list(value.shape)}"
    if isinstance(value, int):
        return str(value) if -2**63 <= value < 2**63 else real(float(value))
    if isinstance(value, float):
        return real(value)
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value)} bytes"
    if isinstance(value, dict):
        return f"dict of {len(value)}"
    if isinstance(value, (list, tuple, set)):
        return f"list of {len(value)}"
    return quoted(str(value)) if not isinstance(value, torch.dtype) else str(value)


def real(value):
    return repr(value).removesuffix(".0")


def lines(value, name="", level=0):
    own = line(value)
    yield None if own is None else "  " * level + (f"{name}: " if level else "") + own
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple, set)) else ()
    for key, item in items:
        yield from lines(item, str(key), level + 1)


def same_table(value, table):
    wanted = list(lines(value))[:1000]
    read = table.split("\n")[:1000]
    assert len(wanted) == len(read), (len(wanted), len(read))
    for a, b in zip(wanted, read):
        assert a is None or a == b, (a, b)


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    result = {}
    for name, info in json.loads(data[8:end]).items():
        if name != "__metadata__":
            begin, stop = info["data_offsets"]
            raw = torch.frombuffer(bytearray(data[end + begin:end + stop]), dtype=torch.uint8) if stop > begin else torch.empty(0, dtype=torch.uint8)
            result[name] = raw.view(SAFETENSORS[info["dtype"]]).reshape(info["shape"])
    return result


def same(wanted, read):
    assert wanted.keys() == read.keys(), (wanted.keys() ^ read.keys())
    for name, tensor in wanted.items():
        tensor = tensor.to(WIDER.get(tensor.dtype, tensor.dtype)).contiguous()
        back = read[name]
        assert back.dtype == tensor.dtype and back.shape == tensor.shape, (name, back.dtype, tensor.dtype, back.shape, tensor.shape)
        assert tensor.numel() == 0 or torch.equal(back.flatten().view(torch.uint8), tensor.flatten().view(torch.uint8)), name


class Reader:
    def __init__(self, bridge, folder):
        self.bridge, self.folder = bridge, folder
        self.target = str(folder / "read.safetensors")

    def error(self, path):
        assert self.bridge.copy_pytorch(str(path).encode(), self.target.encode()) == 1, f"{path} was read"
        return self.bridge.error().decode()

    def check(self, path, value):
        """Compares with what torch.load() reads, which the pickle's protocol hinders at times."""
        if isinstance(value, torch.Tensor):
            value = [value]
            assert self.bridge.copy_pytorch_tensor(str(path).encode(), self.target.encode()) == 0, self.bridge.error()
        else:
            assert self.bridge.copy_pytorch(str(path).encode(), self.target.encode()) == 0, self.bridge.error()
            assert self.bridge.describe_pytorch(str(path).encode()) == 0, self.bridge.error()
            same_table(value, self.bridge.text().decode())
        same(flat(value), read_safetensors(self.target))


def read_all(reader):
    count = 0
    for kind, make in KINDS.items():
        value = make()
        for protocol in (2, 3, 4, 5):
            for archive in (True, False):
                path = reader.folder / "file.pt"
                torch.save(value, path, pickle_protocol=protocol, _use_new_zipfile_serialization=archive)
                try:
                    reader.check(path, value)
                except AssertionError as error:
                    raise AssertionError(f"{kind}, protocol {protocol}, {'archive' if archive else 'no archive'}: {error}") from error
                count += 1
    return count


class Command:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def refuse_all(reader):
    """Files that run code with pickle.load(): each error names the function, and nothing runs."""
    path, trace = reader.folder / "bad.pt", reader.folder / "trace"
    commands = {"posix.system": Command(os.system, f"touch {trace}"), "builtins.eval": Command(eval, f"open({str(trace)!r}, 'w')"),
                ".Popen": Command(__import__("subprocess").Popen, ["touch", str(trace)]),
                "torch.nn.modules.linear.Linear": torch.nn.Linear(2, 2)}
    for name, value in commands.items():
        for protocol in (2, 4):
            for archive in (True, False):
                torch.save({"model": torch.ones(2), "more": [value]}, path, pickle_protocol=protocol, _use_new_zipfile_serialization=archive)
                error = reader.error(path)
                assert name in error, error
                assert not trace.exists()
    return len(commands)


def partial(reader):
    """Tensors that mezzo does not have are errors that name them, and are described."""
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    for wanted, value in {"complex64": torch.ones(2, dtype=torch.complex64), "float8_e4m3fnuz": torch.ones(2).to(torch.float8_e4m3fnuz),
                          "float8_e5m2fnuz": torch.ones(2).to(torch.float8_e5m2fnuz), "sparse": torch.eye(2).to_sparse(),
                          "8 dimensions": torch.ones([1] * 9), "quantized": quantized, "meta": torch.ones(2, device="meta")}.items():
        path = reader.folder / "partial.pt"
        torch.save({"good": torch.ones(2), "bad one": value}, path)
        error = reader.error(path)
        assert wanted in error and "bad one" in error, error
        assert reader.bridge.describe_pytorch(str(path).encode()) == 0, reader.bridge.error()
        assert "good: float32 [2]" in reader.bridge.text().decode() and wanted in reader.bridge.text().decode(), reader.bridge.text()


def special_archives(reader):
    value = {"a": torch.arange(5.0), "b": torch.arange(4)}
    path = reader.folder / "special.pt"
    if hasattr(torch.serialization, "set_crc32_options"):
        torch.serialization.set_crc32_options(False)
        torch.save(value, path)
        torch.serialization.set_crc32_options(True)
        reader.check(path, value)
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    assert "TorchScript" in reader.error(path)


def main():
    bridge = ctypes.CDLL(sys.argv[1])
    bridge.error.restype = bridge.text.restype = ctypes.c_char_p
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as name:
        reader = Reader(bridge, pathlib.Path(name))
        count = read_all(reader)
        refused = refuse_all(reader)
        partial(reader)
        special_archives(reader)
    print(f"PyTorch {torch.__version__}: {count} files of {len(KINDS)} kinds read, {refused} kinds of code refused")


main()
