// Inputs for the cases of op_cases.cpp.
#pragma once

#include <vector>

#include "tests/support/op_cases.h"

namespace mezzo::test {

// Memory layout of an input. shifted: contiguous, but one element away from any alignment.
enum class Placement { plain, transposed, sliced, shifted };

// Reproducible inputs of the given shapes, of the kinds that the case names.
Tensors make_inputs(const OpCase& c, const std::vector<Shape>& shapes, Dtype dtype, Device device,
                    Placement layout = Placement::plain);

// The inputs' exact values in float64 on the CPU.
Tensors exact(const Tensors& inputs);

// Kind of input i, 'f', 'i', 'c' or 'b': see OpCase::kinds.
char kind(const OpCase& c, std::size_t i);

}  // namespace mezzo::test
