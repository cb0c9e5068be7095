// The autocast report: what happened to each op inside scopes.
#pragma once

#include "autograd/row.h"
#include "autograd/state.h"

namespace mezzo {

// Notes one op, when the report is on: the inputs its kernel sees, and what autocast converted for it.
void report_call(const Row& row, const Tensors& values, Dtype result, const CastWork& work);

}  // namespace mezzo
