// Checks and shapes shared by the normalisations.
#pragma once

#include "ops/common.h"

namespace mezzo {

// Returns v, which must be a vector as long as the last dimension of x; if v is undefined, a vector filled
// with `fallback`.
Tensor row_vector(const char* op, const char* what, const Tensor& v, const Tensor& x, double fallback);
// Throws unless x is floating and has at least one dimension.
void check_rows(const char* op, const Tensor& x);
// Throws unless a defined running statistic fits x, has no history and, if `updated`, can be written.
void check_running(const char* op, const char* what, const Tensor& running, const Tensor& x, bool updated);
void check_eps(const char* op, double eps);

}  // namespace mezzo
