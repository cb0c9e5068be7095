#include "mezzo/matmul_precision.h"

#include <atomic>

#include "core/enumerators.h"

namespace mezzo {
namespace {

std::atomic<Float32MatmulPrecision> current{Float32MatmulPrecision::highest};

}  // namespace

void set_float32_matmul_precision(Float32MatmulPrecision precision) {
    check_enumerator("set_float32_matmul_precision", "precision", precision, Float32MatmulPrecision::medium);
    current.store(precision, std::memory_order_relaxed);
}

Float32MatmulPrecision float32_matmul_precision() { return current.load(std::memory_order_relaxed); }

}  // namespace mezzo
