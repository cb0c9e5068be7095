// Op schema and graph node. An op states its traits (name, autocast policy, saved tensors), its gradient and
// its decomposition. The struct of its attributes identifies its kernels:
//
//   const Op<kernels::Linear> linear_op{
//       {.name = "linear", .cast = CastPolicy::low}, linear_vjp, linear_decomposition};
//   Tensor y = call(linear_op, {x, weight, bias}, {.activation = Activation::none}, shape);
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "autograd/attributes.h"
#include "core/internal.h"
#include "core/tensor_impl.h"
#include "kernels/dispatch.h"

namespace mezzo {

// Autocast policy for eligible inputs (floating, not float64, on a device that the open scope covers).
enum class CastPolicy : std::uint8_t {
    keep,      // nothing
    low,       // cast to the scope's 16-bit dtype
    fp32,      // cast to float32
    fp32_out,  // read the inputs as they are, give a float32 result
    promote,   // cast all to the widest of them, at least the scope's dtype
    banned,    // throw, naming the safe form
};

// Tensors that are saved for the gradient, as bits. Shapes, dtypes and edges are always saved; data only if
// named here.
enum Saves : std::uint8_t {
    save_none = 0,
    save_inputs = 1,  // all of them
    save_outputs = 2,
    save_first = 4,       // the first input
    save_second = 8,      // the second input
    save_statistics = 16  // the results after the first
};

// Rule for the result's dtype, from the inputs after autocast. flags: boolean, indices: int64, requested: the
// dtype that is passed to call().
enum class ResultDtype : std::uint8_t { first, promoted, flags, indices, requested };

struct OpTraits {
    // Null: the attributes' name. Several ops may share a kernel, and so its attributes.
    const char* name = nullptr;
    CastPolicy cast = CastPolicy::keep;
    std::uint8_t cast_inputs = 255;  // number of inputs under the policy; later ones keep their dtypes
    std::uint8_t saves = save_inputs;
    ResultDtype result = ResultDtype::first;
    bool integers_to_real = false;  // integral inputs compute in float32, or float64 if another is
    bool strided = false;           // kernels accept any strides; otherwise inputs are made contiguous first
    bool mixed = false;  // kernels accept inputs of different dtypes; otherwise floating inputs must agree
    bool differentiable = true;
    bool any_dtype = false;  // takes dtypes for storage only; Op sets it as the attributes say
    // Kernels can write the first result a second time, in 16 bit, as one more result after the others: the
    // copy that the next matrix product reads under autocast (GradMeta::copy16).
    bool writes_copy16 = false;
    // If not 0: results from this one on are float32 (float64 if result 0 is) whatever the dtype of the first
    // is. For results that only the gradient reads, such as means, maxima and sums.
    std::uint8_t first_float32_result = 0;
    std::uint8_t bits_result = 0;  // if not 0: this result is uint8, bits that only the gradient reads
    bool fp8 = false;  // a product of input 0 with matrices, which under Autocast with fp8 may be in float8
    // Number of gradients of values inside the op (pre-activation, bias) that its vjp accepts. They follow
    // those of the results. If the result has a single use, the op that reads it may send them instead of the
    // result's gradient (Node::send_inner).
    std::uint8_t fused_gradients = 0;
};

struct Node;

// An op as call() and the engine see it, without the type of its attributes.
class AnyOp {
public:
    AnyOp(const AnyOp&) = delete;
    AnyOp& operator=(const AnyOp&) = delete;

    const OpTraits& traits() const { return traits_; }
    const char* name() const { return traits_.name; }
    const AttributesType& attributes() const { return *attributes_; }
    // Whether the attributes, and so the kernels, are those of A.
    template <class A> bool is() const { return &kernels_.id() == &kernel_id<A>; }

    // Gradients of the inputs from those of the results. Without a vjp the engine differentiates the
    // decomposition.
    bool has_vjp() const { return run_vjp_ != nullptr; }
    Tensors vjp(const Node& node, const Tensors& gradients) const { return run_vjp_(vjp_, node, gradients); }
    // The op in terms of other ops: the fallback where a kernel is missing, the reference of the tests, and
    // the gradient if there is no vjp. call() converts 16-bit inputs to float32 before, and the results to
    // their dtypes afterwards.
    bool has_decomposition() const { return run_decomposition_ != nullptr; }
    Tensors decompose(In inputs, const void* attributes) const {
        return run_decomposition_(decomposition_, inputs, attributes);
    }
    // The kernel of a device type, or null if it has none: call() then runs the decomposition, or the CPU's
    // kernel on copies if there is no decomposition.
    AnyKernel* kernel(DeviceType type) const { return kernels_.on(type); }
    const KernelCache& kernels() const { return kernels_; }

    // All ops, in a list that only tests, documentation and coverage read.
    static const AnyOp* first();
    const AnyOp* next() const { return next_; }

protected:
    using Function = void (*)();  // of a type that run_vjp_ and run_decomposition_ know
    AnyOp(const OpTraits& traits, const AttributesType& attributes, const KernelId& kernel);

    Function vjp_ = nullptr, decomposition_ = nullptr;
    Tensors (*run_vjp_)(Function, const Node&, const Tensors&) = nullptr;
    Tensors (*run_decomposition_)(Function, In, const void*) = nullptr;

private:
    OpTraits traits_;
    const AttributesType* attributes_;
    KernelCache kernels_;
    const AnyOp* next_;
};

// Target of a gradient: result `output` of `node`, or the leaf; none if the input needs no gradient.
struct Edge {
    Ref<Node> node;
    std::uint32_t output = 0;
    Tensor leaf;
    bool needed() const { return node || leaf.defined(); }
};

// Metadata of an input or result.
struct TensorMeta {
    Shape shape;
    Dtype dtype = float32;
    Device device;
};

struct NodeExtra;  // autograd/extra.h: hooks on results, user-defined functions, checkpoints

// One recorded op: a node of the graph.
struct Node {
    std::atomic<std::uint32_t> refs{0};
    const AnyOp* op = nullptr;
    std::uint64_t sequence = 0;      // grows with creation: a node is newer than everything it depends on
    Attributes attributes;           // of the struct that the op was made for
    std::vector<Edge> edges;         // per input, added by connect()
    std::vector<TensorMeta> inputs;  // of the tensors as given, before autocast
    std::atomic<std::uint32_t> consumers{0};  // edges that have ever led to a result of this node
    std::vector<TensorMeta> outputs;
    Tensors saved_inputs;  // as the kernel read them: given tensors, or conversions without history
    Tensors saved_outputs;
    // Versions of the saved tensors' storages, inputs first: an in-place write since then is an error.
    std::vector<std::uint64_t> versions;
    bool released = false;  // backward has run and freed the saved tensors
    // Scale state of gradients that pass through the op, if it multiplies by a GradScaler's scale; else 0.
    std::uint32_t scales = 0;
    NodeExtra* extra = nullptr;
    Node* next_disposed = nullptr;  // in the list of nodes to be freed, or of freed ones

    Node();
    ~Node();

    // Input i as the kernel read it; with its history if the backward is recorded (create_graph).
    Tensor in(int i) const;
    // Result i; with its history if the backward is recorded.
    Tensor out(int i = 0) const;
    // Whether the running backward needs the gradient of input i.
    bool needs(int i) const;
    // The float32 grad() of input i, if a product may be added to it in place (GEMM beta = 1) instead of
    // being returned; undefined otherwise. A vjp that adds to it returns an undefined gradient for i.
    Tensor accumulator(int i) const;
    // Gradient accumulation fusion: removes and returns the gradient that the engine has already accumulated
    // for the result that input i is, contiguous, in the shape and dtype of that result. A vjp that takes it
    // returns its own gradient of input i plus this one, which saves an addition. alone: only a gradient
    // without other references, which may be written to. Undefined if there is none, and in a recorded
    // backward.
    Tensor take_accumulated(int i, bool alone) const;
    // The dtype in which the gradient of input i will be stored: float32 for a weight that autocast read in
    // 16 bit.
    Dtype grad_dtype(int i) const { return inputs[std::size_t(i)].dtype; }
    // Whether input i is the only use of the node that made it: no other op has ever read a result of that
    // node, backward does not start at one, no hook is set on one, and grad() does not request one. Then the
    // vjp may call send_inner() instead of returning a gradient.
    bool sole_consumer(int i) const;
    // Sends gradients of values inside the op that made input i, such as of its pre-activation and bias
    // (OpTraits::fused_gradients), to that op's node; undefined gradients are left out. The vjp then returns
    // no gradient for i.
    void send_inner(int i, const Tensors& gradients) const;

    // Adds an input: the target of its gradient, and its metadata.
    void connect(Edge edge, const TensorMeta& input);
    void note_versions();

private:
    void require_kept(bool input, int i) const;
};
MEZZO_INTERNAL void dispose(Node* node) noexcept;

// An op whose attributes are an A.
template <class A> class MEZZO_HIDDEN Op : public AnyOp {
public:
    // gradient: Tensors(const Node&, const A&, const Tensors& gradients), or without the A. decomposition:
    // Tensors(In, const A&), or Tensors(In). Functions, lambdas without captures, or nullptr; those of
    // another op do not compile.
    template <class V = std::nullptr_t, class D = std::nullptr_t>
    explicit Op(const OpTraits& traits, V gradient = nullptr, D decomposition = nullptr)
        : AnyOp(named(traits), attributes_type<A>, kernel_id<A>) {
        if constexpr (!std::is_null_pointer_v<V>) set_vjp(+gradient);
        if constexpr (!std::is_null_pointer_v<D>) set_decomposition(+decomposition);
    }

private:
    static OpTraits named(OpTraits traits) {
        if (traits.name == nullptr) traits.name = A::name;
        traits.any_dtype = takes_any_dtype<A>;
        return traits;
    }
    void set_vjp(Tensors (*function)(const Node&, const A&, const Tensors&)) {
        vjp_ = reinterpret_cast<Function>(function);
        run_vjp_ = [](Function f, const Node& node, const Tensors& gradients) {
            return reinterpret_cast<decltype(function)>(f)(node, node.attributes.template as<A>(), gradients);
        };
    }
    void set_vjp(Tensors (*function)(const Node&, const Tensors&)) {
        vjp_ = reinterpret_cast<Function>(function);
        run_vjp_ = [](Function f, const Node& node, const Tensors& gradients) {
            return reinterpret_cast<decltype(function)>(f)(node, gradients);
        };
    }
    void set_decomposition(Tensors (*function)(In, const A&)) {
        decomposition_ = reinterpret_cast<Function>(function);
        run_decomposition_ = [](Function f, In inputs, const void* attributes) {
            return reinterpret_cast<decltype(function)>(f)(inputs, *static_cast<const A*>(attributes));
        };
    }
    void set_decomposition(Tensors (*function)(In)) {
        decomposition_ = reinterpret_cast<Function>(function);
        run_decomposition_ = [](Function f, In inputs, const void*) {
            return reinterpret_cast<decltype(function)>(f)(inputs);
        };
    }
};

// Runs an op: applies autocast, checks devices, runs the kernel and records the node. `attributes` must be of
// the op's own struct. dtype: that of the result, if it shall not follow from the inputs.
Tensors call(const AnyOp& op, In inputs, const AttributesRef& attributes, std::span<const Shape> shapes,
             std::optional<Dtype> dtype);
// Several results.
template <class A> Tensors call(const Op<A>& op, In inputs, const std::type_identity_t<A>& attributes,
                                std::span<const Shape> shapes, std::optional<Dtype> dtype = {}) {
    return call(static_cast<const AnyOp&>(op), inputs, AttributesRef(attributes), shapes, dtype);
}
// One result of the given shape.
Tensor call_one(const AnyOp& op, In inputs, const AttributesRef& attributes, const Shape& shape,
                std::optional<Dtype> dtype);
template <class A> Tensor call(const Op<A>& op, In inputs, const std::type_identity_t<A>& attributes,
                               const Shape& shape, std::optional<Dtype> dtype = {}) {
    return call_one(op, inputs, AttributesRef(attributes), shape, dtype);
}
template <class A> Tensor call(const Op<A>& op, std::initializer_list<Tensor> inputs,
                               const std::type_identity_t<A>& attributes, const Shape& shape,
                               std::optional<Dtype> dtype = {}) {
    return call_one(op, In(inputs.begin(), inputs.size()), AttributesRef(attributes), shape, dtype);
}
// Records a view op. `view` has been made already, on the storage of `input`, and gets its history here.
Tensor record_view(const AnyOp& op, const Tensor& input, const AttributesRef& attributes, Tensor view);

// Whether an open Autocast scope may convert x: floating, not float64, on the scope's device.
bool autocast_takes(const Tensor& x);

// The dtype to which an open Autocast scope converts x for an op of policy `low` or `fp32`; otherwise x's
// own.
Dtype autocast_dtype(CastPolicy cast, const Tensor& x);

}  // namespace mezzo
