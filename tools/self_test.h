// Small problems whose results are known: does a device compute what it should?
#pragma once

#include <mezzo/mezzo.h>

#include <string>
#include <vector>

struct SelfTestLine {
    std::string what;  // such as "float16 product"
    bool good;
    std::string found;  // the error that was measured, or what was thrown
};
// In float32, bfloat16 and float16: a product and its gradients against sums in double, and a training that must
// learn. Takes a moment; draws no random numbers of the program's stream. Throws nothing that a device throws.
std::vector<SelfTestLine> self_test(mezzo::Device device);
