#!/usr/bin/env python3
"""Writes tests/reference/images.h, what torchvision (0.29) and PIL (13) make of images, as checksums, or tests/reference/image_files.h, small
image files and the checksums of their pixels.

Usage: tools/reference_images.py > tests/reference/images.h
       tools/reference_images.py files > tests/reference/image_files.h
"""
import io
import struct
import sys
import zlib

import numpy as np
import PIL
import torchvision
import torchvision.transforms.functional as F
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.autoaugment import _apply_op


def image(height, width, channels):
    """The same as test_image() in tests/data/test_image.h."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    return ((x * 7 + y * 13 + c * 29 + (x * y) % 17 * 5 + ((x // 3) ^ (y // 2)) * 11) & 255).astype(np.uint8)


def pil(pixels):
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def pixels(img):
    array = np.asarray(img)
    return array[:, :, None] if array.ndim == 2 else array


def checksum(array):
    value = 0xcbf29ce484222325  # FNV-1a
    for byte in array.tobytes():
        value = ((value ^ byte) * 0x100000001b3) & 0xffffffffffffffff
    return f"{{{', '.join(map(str, array.shape))}}}, 0x{value:016x}ULL"


def row(name, given, a, b, result):
    print(f'    {{"{name}", {{{", ".join(map(str, given))}}}, {a}, {b}, {checksum(pixels(result))}}},')


def resized(img, size):
    """Columns, then rows: newer versions of PIL take the other order where that is less work, which rounds differently."""
    return F.resize(F.resize(img, [img.height, size[1]]), list(size))


def resizing():
    for given in ((40, 30, 3), (30, 40, 3), (33, 65, 1), (5, 7, 3), (1, 1, 3), (300, 200, 3), (23, 17, 4)):
        source = image(*given)
        for size in ((20, 20), (64, 48), (5, 7), (1, 1), (30, 40), (7, 200)):
            if given[2] < 4:  # PIL weights colours by alpha
                row("resize", given, *size, resized(pil(source), size))
            else:
                bands = [pixels(resized(pil(source[:, :, c:c + 1]), size)) for c in range(4)]
                row("resize", given, *size, np.concatenate(bands, 2))
    for given, side in (((40, 30, 3), 16), ((30, 41, 3), 16), ((33, 65, 3), 50), ((1, 3, 3), 4)):
        row("resize", given, side, 0, F.resize(pil(image(*given)), side))
    for given, size in (((40, 30, 3), (16, 16)), ((31, 41, 3), (16, 16)), ((33, 65, 3), (50, 40)), ((5, 7, 3), (8, 12)),
                        ((10, 9, 1), (4, 14))):
        row("center_crop", given, *size, F.center_crop(pil(image(*given)), list(size)))


def colors():
    for given in ((33, 45, 1), (33, 45, 3), (2, 5, 3), (1, 1, 3)):
        source = pil(image(*given))
        for factor in (0, 0.3, 0.7, 1, 1.5, 1.9):
            row("brightness", given, factor, 0, F.adjust_brightness(source, factor))
            row("contrast", given, factor, 0, F.adjust_contrast(source, factor))
            row("saturation", given, factor, 0, F.adjust_saturation(source, factor))
            row("sharpness", given, factor, 0, F.adjust_sharpness(source, factor))
        for turn in (-0.5, -0.2, 0.1, 0.5):
            row("hue", given, turn, 0, F.adjust_hue(source, turn))
        for bits in (4, 6, 8):
            row("posterize", given, bits, 0, F.posterize(source, bits))
        for threshold in (0, 100.5, 255):
            row("solarize", given, threshold, 0, F.solarize(source, threshold))
        for divisor in (1, 3):  # of the values, then 40 is added: not all of 0 to 255 occur
            narrow = source if divisor == 1 else pil(image(*given) // 3 + 40)
            row("autocontrast", given, divisor, 0, F.autocontrast(narrow))
            row("equalize", given, divisor, 0, F.equalize(narrow))


def moves():
    for given in ((33, 45, 1), (33, 45, 3), (32, 32, 3), (1, 1, 3)):
        for name, values in {"ShearX": (0.09, -0.3), "ShearY": (0.09, -0.3), "TranslateX": (6.3, -20.1), "TranslateY": (6.3, -20.1),
                             "Rotate": (9.0, -30.0, 17.5)}.items():
            for value in values:
                row(name, given, value, 0, _apply_op(pil(image(*given)), name, value, InterpolationMode.NEAREST, None))


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(array, bits, interlaced):
    """A PNG of 1 to 4 channels of 8 or 16 bits, which PIL does not write in all combinations."""
    height, width, channels = array.shape
    passes = [(0, 0, 1, 1)]
    if interlaced:  # Adam7
        passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    lines = b""
    for y, x, down, right in passes:
        part = array[y::down, x::right]
        if part.size:
            lines += b"".join(b"\0" + line.astype(">u2" if bits == 16 else np.uint8).tobytes() for line in part)
    header = struct.pack(">IIBBBBB", width, height, bits, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, int(interlaced))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")


def saved(img, kind, **options):
    file = io.BytesIO()
    img.save(file, kind, **options)
    return file.getvalue()


def file_row(name, data, result):
    text = "".join(f"\\x{byte:02x}" for byte in data)
    parts = "\n     ".join(f'"{text[i:i + 116]}"' for i in range(0, len(text), 116))
    print(f'    {{"{name}", {checksum(result)}, {len(data)},\n     {parts}}},')


def files():
    rgb, wide = image(11, 13, 3), image(11, 13, 3).astype(np.uint16) * 257 + 100
    file_row("gray.png", saved(pil(image(11, 13, 1)), "PNG"), image(11, 13, 1))
    file_row("rgb.png", saved(pil(rgb), "PNG"), rgb)
    file_row("rgb_alpha.png", saved(pil(image(11, 13, 4)), "PNG"), image(11, 13, 4))
    file_row("gray_alpha.png", png(image(11, 13, 2), 8, False), image(11, 13, 2))
    file_row("interlaced.png", png(rgb, 8, True), rgb)
    file_row("wide.png", png(np.minimum(wide, 65535), 16, False), np.round(np.minimum(wide, 65535) / 257).astype(np.uint8))
    palette = pil(rgb).quantize(7)
    file_row("palette.png", saved(palette, "PNG"), pixels(palette.convert("RGB")))
    file_row("transparent_palette.png", saved(palette, "PNG", transparency=2),
             pixels(Image.open(io.BytesIO(saved(palette, "PNG", transparency=2))).convert("RGBA")))
    bits = pil(image(11, 13, 1)).convert("1")
    file_row("bits.png", saved(bits, "PNG"), pixels(bits.convert("L")))
    file_row("pixel.png", saved(pil(image(1, 1, 3)), "PNG"), image(1, 1, 3))
    smooth = pil(image(3, 4, 3)).resize((20, 17))
    exif = Image.Exif()
    exif[0x0112] = 6
    jpegs = {"rgb": (smooth, {}), "progressive": (smooth, {"progressive": True}), "gray": (smooth.convert("L"), {}),
             "cmyk": (smooth.convert("CMYK"), {}), "turned": (smooth, {"exif": exif}), "fine": (smooth, {"subsampling": 0})}
    for name, (img, options) in jpegs.items():
        data = saved(img, "JPEG", quality=60, optimize=True, **options)
        back = Image.open(io.BytesIO(data))
        result = pixels(back.convert("RGB") if name == "cmyk" else back)
        file_row(name + ".jpg", data, result)


def begin(what):
    versions = f"torchvision {torchvision.__version__.split('+')[0]} and PIL {PIL.__version__}"
    print(f"// Written by tools/reference_images.py{what} with {versions}; do not edit.")
    print("#pragma once\n\n#include <cstddef>\n#include <cstdint>\n\nnamespace reference {\n")


def main():
    if "files" in sys.argv:
        begin(" files")
        print("// A file, and the sizes and FNV-1a of its pixels.\nstruct FileRow {\n    const char* name;\n    int sizes[3];\n"
              "    std::uint64_t checksum;\n    std::size_t size;\n    const char* bytes;\n};")
        print("inline constexpr FileRow files[] = {")
        files()
    else:
        begin("")
        print("// A function's name, the sizes of the image that it gets, two numbers, and the sizes and FNV-1a of its result.\n"
              "struct ImageRow {\n    const char* name;\n    int given[3];\n    double a, b;\n    int sizes[3];\n"
              "    std::uint64_t checksum;\n};")
        print("inline constexpr ImageRow images[] = {")
        resizing()
        colors()
        moves()
    print("};\n\n}  // namespace reference")


main()
