// Self-test of a device: small problems whose results are known.
#pragma once

#include <mezzo/mezzo.h>

#include <string>
#include <vector>

struct SelfTestLine {
    std::string what;  // such as "float16 product"
    bool good;
    std::string found;  // the measured error, or the message of an exception
};
// Tests float32, bfloat16 and float16: a product and its gradients against sums in double, and a training
// that must learn. Takes a moment; draws no random numbers from the program's stream. Exceptions of the
// device are reported in the lines.
std::vector<SelfTestLine> self_test(mezzo::Device device);
