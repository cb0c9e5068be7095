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

void check_running(const char* op, const char* what, const Tensor& running, const Tensor& x, bool updated) {
    if (!running.defined()) return;
    row_vector(op, what, running, x, 0);
    check(!(grad_enabled() && tracked(running)), ErrorKind::state, op, ": ", what,
          " requires grad, but has no gradient; detach() it");
    check(!updated || running.is_contiguous(), ErrorKind::value, op, ": ", what,
          " is updated in place and must be contiguous; pass a contiguous() copy");
}

void check_eps(const char* op, double eps) {
    check(eps >= 0, ErrorKind::value, op, ": eps ", eps, " is negative or not a number");
}

}  // namespace mezzo
