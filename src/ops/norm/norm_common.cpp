#include "ops/norm/norm_common.h"

namespace mezzo {

Tensor row_vector(const char* op, const char* what, const Tensor& v, const Tensor& x, double fallback) {
    const std::int64_t n = x.size(-1);
    if (!v.defined())
        return full({n}, fallback, {.dtype = x.dtype() == float64 ? float64 : float32, .device = x.device()});
    check_floating(op, v, what);
    check(v.dim() == 1 && v.size(0) == n, ErrorKind::shape, op, ": ", what, " ", v.shape(),
          " does not fit input ", x.shape(), "; it needs as many elements as the input's last dimension");
    return v;
}

void check_rows(const char* op, const Tensor& x) {
    check_floating(op, x);
    check(x.dim() > 0, ErrorKind::shape, op, ": a 0-dim input has no rows");
}

void check_eps(const char* op, double eps) {
    check(eps >= 0, ErrorKind::value, op, ": eps ", eps, " is negative or not a number");
}

}  // namespace mezzo
