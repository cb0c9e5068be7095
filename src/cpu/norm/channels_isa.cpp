// The loops of batch and group normalisation for one instruction set (isa_unit.h).
#include "cpu/isa/isa_unit.h"

#if MEZZO_ISA_FLAGS
#include "cpu/norm/channel_kernel.h"
#else
#include "cpu/norm/channel_loops.h"
#endif

namespace mezzo::cpu {

#if MEZZO_ISA_FLAGS
const ChannelLoops MEZZO_ISA_JOIN(channels) = channel_loops;
#else
const ChannelLoops MEZZO_ISA_JOIN(channels) = {};
#endif

}  // namespace mezzo::cpu
