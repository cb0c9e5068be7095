"""Safetensors files of PyTorch's tensors, for the comparisons with mezzo: needs torch, but not the safetensors package."""
import json
import struct

import torch

FILE_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
              torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


def save(path, tensors):
    header, offset, blobs = {}, 0, []
    for name, x in tensors.items():
        blob = bytes(x.contiguous().view(-1).view(torch.uint8).numpy()) if x.numel() else b""
        header[name] = {"dtype": FILE_NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load(path):
    data = path.read_bytes()
    length, = struct.unpack("<Q", data[:8])
    dtypes, tensors = {v: k for k, v in FILE_NAMES.items()}, {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        dtype = dtypes[entry["dtype"]]
        raw = bytearray(data[8 + length + begin:8 + length + end])
        x = torch.frombuffer(raw, dtype=dtype) if raw else torch.zeros(0, dtype=dtype)
        tensors[name] = x.reshape(entry["shape"])
    return tensors
