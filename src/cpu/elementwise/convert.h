// Bulk conversion between element types.
#pragma once

#include <cstdint>

#include "mezzo/dtype.h"

namespace mezzo::cpu {

// dst[i] = src[i] as `to` for n contiguous elements, on the calling thread; no alignment needed, no overlap
// allowed. Narrowing floats rounds once, to nearest even, overflow gives infinity, NaN stays NaN. Floating to
// integer truncates towards zero: NaN gives 0, int32 and int64 saturate, uint8 and int8 keep the low eight
// bits. Anything to boolean is x != 0. To float8 as the types of mezzo/dtype.h do, rounded once.
void convert(const void* src, Dtype from, void* dst, Dtype to, std::int64_t n);

}  // namespace mezzo::cpu
