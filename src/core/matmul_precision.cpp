#include "mezzo/matmul_precision.h"

#include <atomic>

namespace mezzo {
namespace {

std::atomic<Float32MatmulPrecision> current{Float32MatmulPrecision::highest};

}  // namespace

void set_float32_matmul_precision(Float32MatmulPrecision precision) {
    current.store(precision, std::memory_order_relaxed);
}

Float32MatmulPrecision float32_matmul_precision() { return current.load(std::memory_order_relaxed); }

}  // namespace mezzo
