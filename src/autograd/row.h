// Op schema ("row") and graph node. The row of an op has its name, autocast policy, saved tensors, gradient
// and decomposition. The struct of its attributes identifies its kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "autograd/attributes.h"
#include "core/tensor_impl.h"
#include "kernels/dispatch.h"

namespace mezzo {

// Autocast policy for eligible inputs (floating, not float64, on a device that the open scope covers).
enum class Cast : std::uint8_t {
    keep,      // nothing
    low,       // cast to the scope's 16-bit dtype
    fp32,      // cast to float32
    fp32_out,  // read the inputs as they are, give a float32 result
    promote,   // cast all to the widest of them, at least the scope's dtype
    banned,    // throw, naming the safe form
};

// Tensors that are saved for the gradient, as bits. Shapes, dtypes and edges are always saved; data only if
// named here.
enum Save : std::uint8_t {
    save_none = 0,
    save_inputs = 1,  // all of them
    save_outputs = 2,
    save_first = 4,       // the first input
    save_second = 8,      // the second input
    save_statistics = 16  // the results after the first
};

// Rule for the result's dtype, from the inputs after autocast. flags: boolean, indices: int64, asked: the
// dtype that is passed to call().
enum class Result : std::uint8_t { first, promoted, flags, indices, asked };

struct Node;
using Vjp = Tensors(const Node& node, const Tensors& g);
using Decomposition = Tensors(In in, const void* at);

// Op schema without the type of its attributes, as the engine uses it.
struct Row {
    const char* name;
    Cast cast;
    std::uint8_t cast_inputs;
    std::uint8_t save;
    Result result;
    bool integers_to_real, strided, mixed, differentiable, copy16;
    std::uint8_t statistics, bits, fused_gradients;
    Vjp* vjp;
    Decomposition* decomposition;
    const AttributesType* attributes;
    const KernelId* kernel;
};

// A registered op. The constructor adds it to a list, which only tests, documentation and coverage read.
class Op {
public:
    explicit Op(const Row& row);
    const Row& row() const { return row_; }
    // The kernel of a device type, or null if it has none: call() then runs the decomposition, or the CPU's
    // kernel on copies if there is no decomposition.
    AnyKernel* kernel(DeviceType type) const { return kernels_.on(type); }
    const KernelCache& kernels() const { return kernels_; }
    const Op* next() const { return next_; }
    static const Op* first();

private:
    Row row_;
    KernelCache kernels_;
    const Op* next_;
};

// Target of a gradient: result `output` of `node`, or the leaf; none if the input needs no gradient.
struct Edge {
    Ref<Node> node;
    std::uint32_t output = 0;
    Tensor leaf;
    bool needed() const { return node || leaf.defined(); }
};

// Metadata of an input or result.
struct Meta {
    Shape shape;
    Dtype dtype = float32;
    Device device;
};

struct NodeExtra;  // autograd/extra.h: hooks on results, user-defined functions, checkpoints

// One recorded op: a node of the graph.
struct Node {
    std::atomic<std::uint32_t> refs{0};
    const Row* row = nullptr;
    std::uint64_t sequence = 0;  // grows with creation: a node is newer than everything it depends on
    Attributes at;               // of the struct that the row was made for
    std::vector<Edge> edges;     // per input, added by connect()
    std::vector<Meta> inputs;    // of the tensors as given, before autocast
    std::atomic<std::uint32_t> consumers{0};  // edges that have ever led to a result of this node
    std::vector<Meta> outputs;
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
    // (Row::fused_gradients), to that op's node; undefined gradients are left out. The vjp then returns no
    // gradient for i.
    void send_inner(int i, const Tensors& gradients) const;

    // Adds an input: the target of its gradient, and its metadata.
    void connect(Edge edge, const Meta& input);
    void note_versions();

private:
    void require_kept(bool input, int i) const;
};
void dispose(Node* node) noexcept;

// A function as a field of a row: .vjp = row_function<linear_vjp>.
template <auto* f> struct MEZZO_HIDDEN RowFunction {
    template <class... T> auto operator()(const T&... x) const -> decltype(f(x...)) { return f(x...); }
};
template <auto* f> MEZZO_HIDDEN inline constexpr RowFunction<f> row_function{};

// The gradient in a row for attributes A: a lambda of (node, at, gradients), or of (node, gradients) if it
// reads no attributes. A lambda that expects another op's attributes does not compile.
template <class A> struct MEZZO_HIDDEN VjpOf {
    template <class F> static constexpr bool reads_attributes =
        std::is_invocable_r_v<Tensors, F, const Node&, const A&, const Tensors&>;
    Vjp* run = nullptr;

    constexpr VjpOf() = default;
    template <class F>
    requires(std::is_empty_v<F> &&
             (reads_attributes<F> ||
              std::is_invocable_r_v<Tensors, F, const Node&, const Tensors&>)) constexpr VjpOf(F)
        : run([](const Node& node, const Tensors& g) -> Tensors {
              if constexpr (reads_attributes<F>)
                  return F{}(node, node.at.template as<A>(), g);
              else
                  return F{}(node, g);
          }) {}
};

// The decomposition in a row: a lambda of (inputs, at), or of (inputs).
template <class A> struct MEZZO_HIDDEN DecompositionOf {
    template <class F> static constexpr bool reads_attributes =
        std::is_invocable_r_v<Tensors, F, In, const A&>;
    Decomposition* run = nullptr;

    constexpr DecompositionOf() = default;
    template <class F>
    requires(std::is_empty_v<F> &&
             (reads_attributes<F> || std::is_invocable_r_v<Tensors, F, In>)) constexpr DecompositionOf(F)
        : run([](In in, const void* at) -> Tensors {
              if constexpr (reads_attributes<F>)
                  return F{}(in, *static_cast<const A*>(at));
              else
                  return F{}(in);
          }) {}
};

// Op schema with attributes of type A.
template <class A> struct MEZZO_HIDDEN RowOf {
    const char* name = A::name;  // several ops may share a kernel, and so its attributes
    Cast cast = Cast::keep;
    std::uint8_t cast_inputs = 255;  // number of inputs under the policy; later ones keep their dtypes
    std::uint8_t save = save_inputs;
    Result result = Result::first;
    bool integers_to_real = false;  // integral inputs compute in float32, or float64 if another is
    bool strided = false;           // kernels accept any strides; otherwise inputs are made contiguous first
    bool mixed = false;  // kernels accept inputs of different dtypes; otherwise floating inputs must agree
    bool differentiable = true;
    // Kernels can write the first result a second time, in 16 bit, as one more result after the others: the
    // copy that the next matrix product reads under autocast (GradMeta::copy16).
    bool copy16 = false;
    // If not 0: results from this one on are float32 (float64 if result 0 is) whatever the dtype of the first
    // is. For results that only the gradient reads, such as means, maxima and sums.
    std::uint8_t statistics = 0;
    std::uint8_t bits = 0;  // if not 0: this result is uint8, bits that only the gradient reads
    // Number of gradients of values inside the op (pre-activation, bias) that its vjp accepts. They follow
    // those of the results. If the result has a single use, the op that reads it may send them instead of the
    // result's gradient (Node::send_inner).
    std::uint8_t fused_gradients = 0;
    VjpOf<A> vjp = {};  // none: differentiate the decomposition
    // The op in terms of other ops: the fallback where a kernel is missing, the reference of the tests, and
    // the gradient if there is no vjp. call() converts 16-bit inputs to float32 before, and the results to
    // their dtypes afterwards.
    DecompositionOf<A> decomposition = {};

    Row erased() const {
        return {name,
                cast,
                cast_inputs,
                save,
                result,
                integers_to_real,
                strided,
                mixed,
                differentiable,
                copy16,
                statistics,
                bits,
                fused_gradients,
                vjp.run,
                decomposition.run,
                &attributes_type<A>,
                &kernel_id<A>};
    }
};

// An op whose attributes are an A.
template <class A> class MEZZO_HIDDEN OpOf : public Op {
public:
    explicit OpOf(const RowOf<A>& row) : Op(row.erased()) {}
};

// Runs an op: applies autocast, checks devices, runs the kernel and records the node. `at` must be of the
// op's own struct. dtype: that of the result, if it shall not follow from the inputs.
Tensors call(const Op& op, In given, const AttributesRef& at, std::span<const Shape> shapes,
             std::optional<Dtype> dtype);
// Several results.
template <class A> Tensors call(const OpOf<A>& op, In given, const std::type_identity_t<A>& at,
                                std::span<const Shape> shapes, std::optional<Dtype> dtype = {}) {
    return call(static_cast<const Op&>(op), given, AttributesRef(at), shapes, dtype);
}
// One result of the given shape.
Tensor call_one(const Op& op, In given, const AttributesRef& at, const Shape& shape,
                std::optional<Dtype> dtype);
template <class A> Tensor call(const OpOf<A>& op, In given, const std::type_identity_t<A>& at,
                               const Shape& shape, std::optional<Dtype> dtype = {}) {
    return call_one(op, given, AttributesRef(at), shape, dtype);
}
template <class A> Tensor call(const OpOf<A>& op, std::initializer_list<Tensor> given,
                               const std::type_identity_t<A>& at, const Shape& shape,
                               std::optional<Dtype> dtype = {}) {
    return call_one(op, In(given.begin(), given.size()), AttributesRef(at), shape, dtype);
}
// Records a view op. `view` has been made already, on the storage of `given`, and gets its history here.
Tensor record_view(const Op& op, const Tensor& given, const AttributesRef& at, Tensor view);

// While this is true on a thread, ops that have a decomposition run it instead of their kernel: tests compare
// the two.
bool& prefer_decomposition();

// Whether an open Autocast scope may convert x: floating, not float64, on the scope's device.
bool autocast_takes(const Tensor& x);

// The dtype to which an open Autocast scope converts x for an op of policy `low` or `fp32`; otherwise x's
// own.
Dtype autocast_dtype(Cast cast, const Tensor& x);

}  // namespace mezzo
