// Recording for the autocast report, which lists the ops inside scopes.
#pragma once

#include "autograd/autocast_state.h"
#include "autograd/op.h"

namespace mezzo {

// Records one op, if the report is on: the inputs of its kernel, and the work that autocast did for it.
void report_call(const OpTraits& traits, const Tensors& values, Dtype result, const CastWork& work);

}  // namespace mezzo
