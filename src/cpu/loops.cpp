#include "loops.h"

#include "isa.h"

namespace mezzo::cpu {

const Loops& active_loops() {
    const Isa isa = active_isa();
    if (isa >= Isa::avx512 && loops_avx512.sum_i64) return loops_avx512;
    if (isa >= Isa::avx2 && loops_avx2.sum_i64) return loops_avx2;
    return loops_portable;
}

}  // namespace mezzo::cpu
