// The autocast report: what happened to each op inside scopes.
#pragma once

#include "autograd/row.h"

namespace mezzo {

// Notes one op, when the report is on.
void report_call(const Row& row, In given, const Tensors& values, Dtype result);

}  // namespace mezzo
