// Recording for the autocast report, which lists the ops inside scopes.
#pragma once

#include "autograd/autocast_state.h"
#include "autograd/op.h"

namespace mezzo {

// Records one op, if the report is on: its inputs before autocast, the dtype in which it computes (that of
// its inputs after autocast, or float32 for 16-bit inputs of a decomposition), and the work that autocast did
// for it.
void report_call(const OpTraits& traits, In inputs, Dtype computed, Dtype result, const CastWork& work);

}  // namespace mezzo
