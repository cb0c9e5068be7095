// The loops of pooling and resizing for one instruction set (isa_unit.h).
#include "cpu/isa/isa_unit.h"

#if MEZZO_ISA_FLAGS
#include "cpu/pool/pool_kernel.h"
#else
#include "cpu/pool/pool_loops.h"
#endif

namespace mezzo::cpu {

#if MEZZO_ISA_FLAGS
const PoolLoops MEZZO_ISA_JOIN(pool) = {
    pool_table<float, float>,
#if MEZZO_ISA_WIDE_TYPES
    pool_table<double, double>,
#else
    {},
#endif
    pool_table<float16_t, float>,
    pool_table<bfloat16_t, float>,
};
#else
const PoolLoops MEZZO_ISA_JOIN(pool) = {};
#endif

}  // namespace mezzo::cpu
