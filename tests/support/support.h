// Helpers of the tests: the devices present, seeded random tensors, and one tolerance per dtype.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor_impl.h"
#include "mezzo/ops.h"

namespace mezzo::test {

// The CPU, and CUDA if a GPU (or its emulation) is present.
std::vector<Device> devices();
// Message of the Error that f throws, whose kind is checked; "no error" if it throws none.
std::string error_message(const std::function<void()>& f, ErrorKind kind);

// Whether a case of the device must end, which it says.
bool no_device();

struct Tolerance {
    double relative, absolute;
};
// Error of one op that computes in float32 (float64 for float64) and rounds once to dtype.
Tolerance tolerance(Dtype dtype);

// Range of a random tensor's values.
enum class Domain {
    any,       // [-2, 2], at least 0.1 from 0 and from other kinks at whole and half numbers
    positive,  // [0.3, 2]
    unit,      // [0.1, 0.9]
    distinct,  // any, with gaps of at least 0.02 between all values
};

// `count` reproducible values.
std::vector<double> random_values(std::int64_t count, std::uint64_t seed, Domain domain);

// A tensor of `values` rounded to dtype.
Tensor tensor_of(const std::vector<double>& values, const Shape& shape, Dtype dtype,
                 Device device = cpu_device);

inline std::vector<double> doubles(const Tensor& x) { return x.to_vector<double>(); }

// Text of the first difference beyond |a - b| <= absolute + relative |b|, or "" if there is none. NaN equals
// NaN.
std::string difference(std::span<const double> actual, std::span<const double> expected, Tolerance allowed);

// Runs every op that has a decomposition as its decomposition.
class ByDecomposition {
public:
    ByDecomposition();
    ~ByDecomposition();
    ByDecomposition(const ByDecomposition&) = delete;
    ByDecomposition& operator=(const ByDecomposition&) = delete;
};

}  // namespace mezzo::test
