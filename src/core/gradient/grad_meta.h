// Allocation of GradMeta for results of ops.
#pragma once

namespace mezzo {

struct GradMeta;
struct TensorImpl;

// As TensorImpl::grads(), but reuses the memory of this thread's destroyed tensors, because every recorded op
// makes a GradMeta.
GradMeta& result_grads(TensorImpl& impl);

}  // namespace mezzo
