#include "cpu/elementwise/loops.h"

#include "cpu/elementwise/loop_tables.h"

namespace mezzo::cpu {

const Loops& loops_of(Isa isa) { return loops_for<Loops, loops_portable, loops_avx2, loops_avx512>(isa); }
const Loops& active_loops() { return loops_of(active_isa()); }

}  // namespace mezzo::cpu
