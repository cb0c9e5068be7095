// Gradient bookkeeping of results.
#pragma once

namespace mezzo {

struct GradMeta;
struct TensorImpl;

// As TensorImpl::grads(), but in memory that this thread's destroyed tensors have left: every recorded op makes one.
GradMeta& result_grads(TensorImpl& impl);

}  // namespace mezzo
