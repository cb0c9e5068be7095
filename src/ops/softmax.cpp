// softmax and log_softmax along one dimension.
#include "kernels/kernels.h"
#include "ops/common.h"

namespace mezzo {

namespace {

Tensor sum_along(const Tensor& x, const Attrs& at) { return sum(x, {at.dim}, keep_dims()); }

// y = softmax(x): dx = y (g - sum(g y)).
const Op softmax_grad_op{{.name = "softmax_grad",
                          .result = Result::promoted,
                          .kernel = MEZZO_KERNELS(softmax_grad),
                          .decomposition = [](In in, const Attrs& at) -> Tensors {
                              const Tensor &g = in[0], &y = in[1];
                              return {as_asked(y * (g - sum_along(g * y, at)), at)};
                          }}};

// y = log_softmax(x): dx = g - exp(y) sum(g).
const Op log_softmax_grad_op{{.name = "log_softmax_grad",
                              .result = Result::promoted,
                              .kernel = MEZZO_KERNELS(log_softmax_grad),
                              .decomposition = [](In in, const Attrs& at) -> Tensors {
                                  const Tensor &g = in[0], &y = in[1];
                                  return {as_asked(g - exp(y) * sum_along(g, at), at)};
                              }}};

// The gradient leaves the kernel in the dtype of x, which is 16 bit where autocast made y float32.
Tensor row_grad(const Op& op, const Node& c, const Tensor& g) {
    return call(op, {g, c.out()}, {.dim = c.at.dim, .dtype = c.grad_dtype(0), .has_dtype = true}, g.shape());
}

// x minus its maximum, which cancels in both functions and keeps exp from overflowing.
Tensor shifted(const Tensor& x, const Attrs& at) { return x - max(x, {at.dim}, keep_dims()).detach(); }

const Op softmax_op{
    {.name = "softmax",
     .cast = Cast::fp32_out,
     .save = save_outputs,
     .kernel = MEZZO_KERNELS(softmax),
     .vjp = [](const Node& c, const Tensors& g) -> Tensors { return {row_grad(softmax_grad_op, c, g[0])}; },
     .decomposition = [](In in, const Attrs& at) -> Tensors {
         const Tensor e = exp(shifted(in[0], at));
         return {as_asked(e / sum_along(e, at), at)};
     }}};

const Op log_softmax_op{{.name = "log_softmax",
                         .cast = Cast::fp32_out,
                         .save = save_outputs,
                         .kernel = MEZZO_KERNELS(log_softmax),
                         .vjp = [](const Node& c, const Tensors& g) -> Tensors {
                             return {row_grad(log_softmax_grad_op, c, g[0])};
                         },
                         .decomposition = [](In in, const Attrs& at) -> Tensors {
                             const Tensor x = shifted(in[0], at);
                             return {as_asked(x - log(sum_along(exp(x), at)), at)};
                         }}};

Tensor along(const Op& op, const Tensor& x, std::int64_t dim) {
    const char* name = op.row().name;
    check_floating(name, x);
    const int d = wrap_dim(name, dim, x.dim());
    if (x.dim() == 0) return along(op, x.reshape({1}), 0).reshape({});
    return call(op, {x}, {.dim = d}, x.shape());
}

}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim) { return along(softmax_op, x, dim); }
Tensor log_softmax(const Tensor& x, std::int64_t dim) { return along(log_softmax_op, x, dim); }

}  // namespace mezzo
