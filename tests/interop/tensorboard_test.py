#!/usr/bin/env python3
"""Reads an event file of mezzo with TensorBoard's own reader: scalars, histograms, text and images. Skipped if no
interpreter has the package.

    tensorboard_test.py path/to/libinterop_bridge.so
"""
import ctypes
import struct
import sys
import tempfile
import zlib

from interpreter import need

need("numpy", "tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402


def pixels(png):
    """Width, height and bytes of a PNG file whose lines have no filter."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at:at + 8])
        data = png[at + 8:at + 8 + size]
        assert zlib.crc32(kind + data) == struct.unpack(">I", png[at + 8 + size:at + 12 + size])[0]
        if kind == b"IHDR":
            width, height = struct.unpack(">II", data[:8])
        packed += data if kind == b"IDAT" else b""
        at += 12 + size
    raw = zlib.decompress(packed)
    row = len(raw) // height
    return width, height, b"".join(raw[y * row + 1:(y + 1) * row] for y in range(height))


def values(events, tag):
    """Of a scalar, whichever way this TensorBoard keeps it."""
    if tag in events.Tags()["scalars"]:
        return [(e.step, e.wall_time, e.value) for e in events.Scalars(tag)]
    from tensorboard.util import tensor_util
    return [(e.step, e.wall_time, float(tensor_util.make_ndarray(e.tensor_proto))) for e in events.Tensors(tag)]


def main():
    bridge = ctypes.CDLL(sys.argv[1])
    bridge.error.restype = ctypes.c_char_p
    with tempfile.TemporaryDirectory() as folder:
        assert bridge.write_run(folder.encode()) == 0, bridge.error()
        bridge.drop_held()
        events = EventAccumulator(folder, size_guidance={"tensors": 0, "scalars": 0, "histograms": 0, "images": 0})
        events.Reload()
        assert values(events, "loss") == [(i, 100.0 + i, struct.unpack("f", struct.pack("f", 1 / (1 + i)))[0]) for i in range(5)]
        assert values(events, "large step")[0][::2] == (1 << 40, -2.5)
        assert values(events, "bad/nonfinite")[0][2] == 1 and values(events, "logged")[0][::2] == (9, 4)
        histogram = events.Histograms("weights")[0].histogram_value
        assert (histogram.min, histogram.max, histogram.num, histogram.sum) == (-1, 1e9, 6, 1e9 + 2)
        assert sum(histogram.bucket) == 6
        below = [sum(n for limit, n in zip(histogram.bucket_limit, histogram.bucket) if limit <= top) for top in (0, 1.5, 1e20)]
        assert below == [3, 4, 6], below
        assert events.Histograms("none")[0].histogram_value.num == 0
        text = events.Tensors("note")[0]
        assert text.step == 1 and text.tensor_proto.string_val[0].decode() == "**bold** \u00fc"
        assert events.summary_metadata["note"].plugin_data.plugin_name == "text"
        picture = events.Images("picture")[0]
        assert (picture.width, picture.height) == (2, 1)
        assert pixels(picture.encoded_image_string) == (2, 1, bytes([0, 128, 255, 64, 255, 0]))
        assert pixels(events.Images("grey")[0].encoded_image_string) == (2, 2, bytes([7] * 4))
    print("tensorboard: scalars, histograms, text and images are read")


main()
