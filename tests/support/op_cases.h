// The cases of op_test.cpp: one line per op.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tests/support/grad_check.h"
#include "tests/support/support.h"

namespace mezzo::test {

// Values and shape of an input, for references in double.
struct Array {
    Shape shape;
    std::vector<double> values;
};
using Reference = std::function<std::vector<double>(std::span<const Array> x)>;

// Dtype of the result in an open Autocast scope: that of its inputs, the scope's, float32, or independent of
// both.
enum class Under { keep, low, fp32, fixed };

struct OpCase {
    const char* name;
    Function* function;
    std::vector<Shape> shapes;
    Reference reference =
        nullptr;  // null: the same function in float64 on the CPU, with every op run as its decomposition
    Under autocast = Under::keep;
    Domain domain = Domain::any;
    const char* kinds = "";  // per input: f float (default), i class index (the first is -100, ignored), c
                             // class index, b boolean
    const char* rows = "";   // rows it covers besides `name`, separated by spaces
    bool gradient = true;    // whether it has one
    bool resizable = true;   // whether its inputs may have one element
    bool empty = true;       // whether they may have none
    double loose = 1;        // multiplies the dtype's tolerance
};

std::vector<OpCase> attention_cases();  // op_cases_attention.cpp
std::vector<OpCase> conv_cases();       // op_cases_conv.cpp
std::vector<OpCase> family_cases();     // op_cases_families.cpp
std::vector<OpCase> index_cases();      // op_cases_index.cpp
std::vector<OpCase> math_cases();       // op_cases_math.cpp
std::vector<OpCase> norm_cases();       // op_cases_norm.cpp
const std::vector<OpCase>& op_cases();
// Cases of the other files.
std::vector<OpCase> pool_cases();

}  // namespace mezzo::test
