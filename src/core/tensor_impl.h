// The object that a Tensor handle points to: metadata, storage, and the node of the graph that made it.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/gradient/gradient_slot.h"
#include "core/internal.h"
#include "core/memory/ref.h"
#include "core/memory/storage.h"
#include "mezzo/tensor.h"

namespace mezzo {

class LeafState;
struct Node;  // autograd/op.h: the graph's only kind of node

// A 16-bit copy of a float32 parameter or result, current while `version` equals its storage's version.
struct Copy16 {
    Tensor value;  // undefined: none
    std::uint64_t version = 0;
    // The 16-bit dtype that autocast last requested; float32: none yet. Threads that share a module all
    // record it, but after the first step none writes.
    std::atomic<Dtype> wanted{float32};

    void want(Dtype dtype) {
        if (wanted.load(std::memory_order_relaxed) != dtype) wanted.store(dtype, std::memory_order_relaxed);
    }
    void clear() {
        value = Tensor();
        version = 0;
        wanted = float32;
    }
};

// Gradient bookkeeping, made on first use so that plain tensors stay small.
struct MEZZO_INTERNAL GradMeta {
    bool requires_grad = false;
    bool no_fp8 = false;  // a weight that products read in 16 bit under Autocast with fp8: set_fp8()
    // An nn::Parameter that no module and no optimizer has listed (core/gradient/unlisted.h).
    std::atomic<bool> unlisted{false};
    bool embedding = false;    // a table of which a step reads few rows
    GradientSlot gradient;     // of a leaf
    Ref<Node> node;            // of the op that made this tensor; null for leaves
    std::uint32_t output = 0;  // which of the node's results it is
    Copy16 copy16;
    Copy16 frozen16;  // of a parameter on the CPU: autocast makes it in an InferenceMode; under packed_mutex
    // An 8-bit weight (mezzo/quantize.h) has a scale, and the dtype of its rows in results of embedding().
    Tensor scale;
    Dtype row_dtype = float32;
    Ref<LeafState> state;   // null: none
    void* hooks = nullptr;  // autograd/hooks.cpp
    void (*free_hooks)(void*) = nullptr;
    // The tensor's versions before and after its elements moved to another storage unchanged: no write.
    struct Move {
        std::uint64_t from = 0, to = 0;
    } moved;
    // Both are in autograd/node.cpp, which knows Node.
    explicit GradMeta(TensorImpl& tensor);
    ~GradMeta();
};

// Frees GradMeta::frozen16.
void drop_frozen16(GradMeta& meta);

struct TensorImpl {
    std::atomic<std::uint32_t> refs{0};
    Dtype dtype = float32;
    bool view = false;
    bool contiguous = true;
    // Autocast or cast() made this float32 tensor from 16 bit: binary_cross_entropy refuses it in a scope.
    bool from_cast = false;
    Shape shape;
    Strides strides;          // in elements
    std::int64_t offset = 0;  // in elements, into the storage
    std::int64_t numel = 0;
    Ref<Storage> storage;
    GradMeta* grad_meta = nullptr;

    ~TensorImpl();
    GradMeta& grads() {
        if (!grad_meta) grad_meta = new GradMeta(*this);
        return *grad_meta;
    }
    char* bytes() const { return static_cast<char*>(storage->data) + offset * std::int64_t(size_of(dtype)); }
};

// As TensorImpl::grads(), but reuses the memory of this thread's destroyed tensors, because every recorded op
// makes a GradMeta.
GradMeta& result_grads(TensorImpl& impl);

// Whether products may read the weight in float8.
inline bool allows_fp8(const Tensor& weight) {
    return weight->grad_meta == nullptr || !weight->grad_meta->no_fp8;
}
// `weight`, made of `of`, stays in 16 bit if that does.
inline void keep_fp8(const Tensor& weight, const Tensor& of) {
    if (!allows_fp8(of)) weight->grads().no_fp8 = true;
}

// Whether the tensor is an 8-bit weight of quantize_weights(): codes that have scales.
inline bool is_quantized(const Tensor& weight) {
    return weight.defined() && weight->grad_meta != nullptr && weight->grad_meta->scale.defined();
}

// Numbers of live tensors, nodes and storages. Tests compare them to show that nothing leaks.
struct LiveObjects {
    std::int64_t tensors = 0, nodes = 0, storages = 0;
};
LiveObjects live_objects();
namespace detail {
extern std::atomic<std::int64_t> live_tensors, live_nodes, live_storages;
}

// A new tensor on existing storage.
MEZZO_INTERNAL Tensor make_tensor(const Ref<Storage>& storage, const Shape& shape, const Strides& strides,
                                  std::int64_t offset, Dtype dtype);
// The same elements without graph or gradient (shares the storage).
Tensor alias(const Tensor& x);
// The address of the first element.
inline void* raw(const Tensor& x) { return x->bytes(); }
inline bool tracked(const Tensor& x) { return x.defined() && x->grad_meta && x->grad_meta->requires_grad; }

}  // namespace mezzo
