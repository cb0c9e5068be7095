// Module, the base class of layers and models. MEZZO_MODULE lists a module's fields; from that list the base
// class implements parameters(), state_dict(), to() and printing.
//
//   struct Net : nn::Module {
//       nn::Linear hidden{784, 128}, head{128, 10};
//       Tensor operator()(const Tensor& x) const { return head(relu(hidden(x))); }
//       MEZZO_MODULE(Net, hidden, head)
//   };
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "mezzo/callback.h"
#include "mezzo/module_hooks.h"
#include "mezzo/state_dict.h"

#pragma GCC visibility push(default)

namespace mezzo {

namespace nn {
namespace detail {

struct OwnCopies;  // any_module.h

// Calls forward, a callable of type F, with tensors of a list as its arguments.
template <class F, class Result, class Indices> struct HookedForward;
template <class F, class Result, std::size_t... i>
struct HookedForward<F, Result, std::index_sequence<i...>> {
    static Result run(const void* forward, const Tensor* inputs) {
        return (*static_cast<const F*>(forward))(inputs[i]...);
    }
};
// Calls forward with the module's hooks around it. reenters: forward is the module's own operator(), whose
// with_hooks() shall not run them again.
struct HookedCall {
    const Module& module;
    const Tensor* const* inputs;
    int count;
    const void* forward;
    bool reenters;
};
Tensor run_hooked(const HookedCall& call, Tensor (*run)(const void* forward, const Tensor* inputs));
Tensors run_hooked(const HookedCall& call, Tensors (*run)(const void* forward, const Tensor* inputs));
// Replaces the shared submodules, parameters and buffers of a copied module by copies, and drops its hooks.
void make_own(Module& copy);

}  // namespace detail

// A tensor that is trained: requires grad, and belongs to parameters(). Copies share the elements and the
// gradient.
class Parameter : public Tensor {
public:
    Parameter() = default;  // undefined: a parameter that is switched off, such as the bias of Linear(…,
                            // {.bias = false})
    // Shares the elements of a leaf; a result of recorded ops is detached. Error(dtype) unless it is
    // floating.
    explicit Parameter(const Tensor& value);
    Parameter(const Parameter&) = default;
    Parameter(Parameter&&) = default;
    Parameter& operator=(const Parameter&) & = default;
    Parameter& operator=(Parameter&&) & = default;
    // These would replace the tensor by another one that optimizers do not have: use add_() and mul_() under
    // NoGrad.
    template <class T> Tensor& operator+=(const T&) = delete;
    template <class T> Tensor& operator-=(const T&) = delete;
    template <class T> Tensor& operator*=(const T&) = delete;
    template <class T> Tensor& operator/=(const T&) = delete;
};

// A tensor that is saved and moved with the module but not trained, such as running statistics.
class Buffer : public Tensor {
public:
    Buffer() = default;
    explicit Buffer(const Tensor& value);
    Buffer(const Buffer&) = default;
    Buffer(Buffer&&) = default;
    Buffer& operator=(const Buffer&) & = default;
    Buffer& operator=(Buffer&&) & = default;
    template <class T> Tensor& operator+=(const T&) = delete;
    template <class T> Tensor& operator-=(const T&) = delete;
    template <class T> Tensor& operator*=(const T&) = delete;
    template <class T> Tensor& operator/=(const T&) = delete;
};

// Visitor of the fields of a module, in the order of declaration. Names are those of the fields; elements of
// vectors and arrays add ".0", ".1", … An empty std::optional is left out.
class FieldVisitor {
public:
    virtual ~FieldVisitor() = default;
    virtual void parameter(const std::string& /*name*/, Parameter& /*parameter*/) {}
    virtual void buffer(const std::string& /*name*/, Buffer& /*buffer*/) {}
    virtual void module(const std::string& /*name*/, Module& /*child*/) {}
};

// The base of all modules. A copy of a module shares its parameters with the original (they are handles) and
// has its hooks; its training flag is its own. clone() below makes a module that shares nothing. A user's
// module derives from Module, lists its fields with MEZZO_MODULE and defines operator().
class Module {
public:
    virtual ~Module() = default;

    // All parameters, depth first in the order of declaration; a parameter that occurs twice is listed once.
    [[nodiscard]] Tensors parameters() const;
    // The same with names such as "encoder.layers.0.weight".
    [[nodiscard]] StateDict named_parameters(const std::string& prefix = "") const;
    [[nodiscard]] StateDict named_buffers(const std::string& prefix = "") const;
    // Elements of all parameters, or of those that require grad.
    [[nodiscard]] std::int64_t num_parameters(bool only_trainable = false) const;

    // This module and all its submodules with their paths, "" for this one, depth first.
    [[nodiscard]] std::vector<std::pair<std::string, Module*>> named_modules();
    // Calls f(module) for all modules inside of this one, and then for itself.
    void apply(const autograd::Callback<void(Module&)>& f);

    // With false, products of this module's weights stay in 16 bit under Autocast with fp8. The output layers
    // of Bert's, Gpt's and Llama's heads are set so, as is usual. Stays through to() and
    // load_state_dict(); clone() copies it. A weight that is computed, as by
    // weight_norm(), is another tensor, for which an inner Autocast scope without fp8 does the same.
    void set_fp8(bool on);

    // Set requires_grad of all parameters to false and to true. Gradients still go through a frozen module to
    // what is before it, and its batch norms go on with their running statistics until eval().
    void freeze();
    void unfreeze();

    // Parameters and buffers by name, detached, in the layout of as_saved(). They share the elements with the
    // module; use snapshot() for a copy that training does not change.
    [[nodiscard]] StateDict state_dict() const;
    // Deep copy of state_dict(): best = net.snapshot(), and later net.load_state_dict(best).
    [[nodiscard]] StateDict snapshot() const { return state_dict().clone(); }
    // Copies values into parameters and buffers, converting dtype and device. Throws Error(value), with
    // nothing changed, when a name is missing, unexpected or of another shape; the text lists all of them.
    // strict = false ignores missing and unexpected names. A tied weight loads by each of its names; if it is
    // there twice, with different values, that is an Error(value), too.
    void load_state_dict(const StateDict& state, bool strict = true);

    // Moves parameters, their gradients and buffers. The tensors stay the same objects, so optimizers made
    // before stay valid. Throws Error(device) for a device that does not exist.
    void to(Device device);
    // Converts floating parameters, their gradients and buffers, likewise in place. Error(dtype) for a dtype
    // that is not floating.
    void to(Dtype dtype);

    // Switches dropout and the like on or off, here and in all children.
    void train(bool on = true);
    void eval() { train(false); }
    [[nodiscard]] bool training() const { return training_; }

    // Clears the gradients of all parameters, or sets them to zero.
    void zero_grad(bool set_to_none = true);

    // Hooks run in the order of their registration (module_hooks.h): in calls of the library's layers, of
    // ResNet and of the blocks of Bert, Gpt and Llama, in calls by Sequential and AnyModule, and in calls of
    // a user's class whose operator() passes its work to with_hooks(). Other calls of a user's class run
    // none. Nor do layers that a block merges with others into one op, such as the projections of Bert. A
    // replayed cuda::CapturedStep runs no hooks.
    //
    // Before the call; may replace its inputs.
    RemovableHandle register_forward_pre_hook(ForwardPreHook hook);
    // After the call; may replace its outputs.
    RemovableHandle register_forward_hook(ForwardHook hook);
    // In backward, when the gradients of the outputs are complete; may replace them.
    RemovableHandle register_full_backward_pre_hook(BackwardPreHook hook);
    // In backward, when the gradients of the inputs are complete, too; may replace these.
    RemovableHandle register_full_backward_hook(BackwardHook hook);
    [[nodiscard]] bool has_hooks() const { return !hooks_.none() && hooks_.any_active(); }

    // The tree of modules, one per line, such as "Linear(in_features=2, out_features=3, bias=true)".
    [[nodiscard]] std::string to_string() const;

    // MEZZO_MODULE defines both.
    [[nodiscard]] virtual const char* type_name() const = 0;
    virtual void visit_fields(FieldVisitor& visitor) = 0;
    // The text between the parentheses of to_string().
    [[nodiscard]] virtual std::string describe() const { return {}; }
    // Layout of one of this module's own fields in state_dict() and load_state_dict(): a view of its elements
    // with the dimensions in the order of files. Convolutions return PyTorch's order. Names of elements of a
    // vector have the form "weights.0". Must not depend on anything but the field and the tensor's shape.
    [[nodiscard]] virtual Tensor as_saved(std::string_view field, const Tensor& tensor) const;
    // True for normalisation layers, which the amp presets O2 keeps in float32.
    [[nodiscard]] virtual bool is_normalization() const { return false; }
    // Whether linear() alone reads a parameter as a matrix [out, in], perhaps besides embedding(), so that
    // quantize_weights() may replace it. path: a field of this module, or one of a submodule, such as
    // "transformer.wte.weight" of a model whose output layer multiplies by its token embedding.
    [[nodiscard]] virtual bool is_linear_weight(std::string_view /*path*/) const { return false; }
    // For modules whose copies share submodules, such as Sequential: replaces each submodule by its
    // own_copy().
    virtual void own_copies(detail::OwnCopies&) {}

protected:
    // forward(inputs...) with the hooks around it: the body of operator() of a class whose calls run hooks.
    // forward returns a Tensor or Tensors. Without hooks it is a plain call.
    //
    //   Tensor operator()(const Tensor& x) const {
    //       return with_hooks([&](const Tensor& in) { return head(relu(hidden(in))); }, x);
    //   }
    template <class F, class... T> [[nodiscard]] auto with_hooks(const F& forward, const T&... inputs) const {
        using Result = decltype(forward(inputs...));
        if (hooks_.none()) [[likely]]
            return forward(inputs...);
        const Tensor* const list[] = {&inputs...};
        return detail::run_hooked({*this, list, int(sizeof...(T)), &forward, false},
                                  detail::HookedForward<F, Result, std::index_sequence_for<T...>>::run);
    }
    void drop_hooks() { hooks_.clear(); }

private:
    friend Tensors detail::run_hooked(const detail::HookedCall&, Tensors (*)(const void*, const Tensor*));
    friend void detail::make_own(Module&);
    RemovableHandle add_hook(detail::HookKind kind, detail::ModuleHook::Function function);
    detail::HookList hooks_;
    bool training_ = true;
};

std::ostream& operator<<(std::ostream& out, const Module& module);  // module.to_string()

namespace detail {

// Writes a line to the log sink, once per class, if the module's class has no MEZZO_MODULE of its own, but
// derives from `listed` and inherits its type_name(). Fields that such a class adds are neither trained nor
// saved.
void note_unlisted(const Module& module, const std::type_info& listed, const char* listed_name);

// Removes the first name of a list such as "weight, bias", and returns it.
std::string next_field_name(std::string_view& names);

template <class M> inline constexpr bool is_list = false;
template <class M> inline constexpr bool is_list<std::vector<M>> = true;
template <class M, std::size_t n> inline constexpr bool is_list<std::array<M, n>> = true;
template <class M> inline constexpr bool is_optional = false;
template <class M> inline constexpr bool is_optional<std::optional<M>> = true;

template <class Field> void visit_field(FieldVisitor& visitor, const std::string& name, Field& field) {
    if constexpr (std::is_base_of_v<Parameter, Field>) {
        visitor.parameter(name, field);
    } else if constexpr (std::is_base_of_v<Buffer, Field>) {
        visitor.buffer(name, field);
    } else if constexpr (is_optional<Field>) {
        if (field) visit_field(visitor, name, *field);
    } else if constexpr (is_list<Field>) {
        for (std::size_t i = 0; i < field.size(); ++i)
            visit_field(visitor, name + "." + std::to_string(i), field[i]);
    } else {
        static_assert(
            std::is_base_of_v<Module, Field>,
            "MEZZO_MODULE: each field is a Parameter, a Buffer, a module, or a std::vector, std::array or "
            "std::optional of these, held by value; nn::ModuleDict holds modules by name");
        visitor.module(name, field);
    }
}

template <class... Fields> void visit_fields([[maybe_unused]] FieldVisitor& visitor,
                                             [[maybe_unused]] std::string_view names, Fields&... fields) {
    (visit_field(visitor, next_field_name(names), fields), ...);
}

}  // namespace detail

// A module that shares nothing with the given one: PyTorch's copy.deepcopy(). Values, dtypes, devices,
// training flags and requires_grad are the same; a parameter that occurs twice is also shared in the copy.
// Gradients, hooks and history are not copied; tensors that are not fields of MEZZO_MODULE are shared.
template <class M>
requires(std::is_base_of_v<Module, M>) [[nodiscard]] M clone(const M& module) {
    M copy(module);
    detail::make_own(copy);
    return copy;
}

}  // namespace nn
}  // namespace mezzo

// Lists the class and its fields inside a class derived from nn::Module: MEZZO_MODULE(Classifier, embedding,
// layers, head). A class that derives from one with MEZZO_MODULE needs its own MEZZO_MODULE, with the fields
// of both; without it the log sink gets a warning (mezzo/log.h), and fields that the class adds are not
// trained. Fields that a line does not name are neither trained, moved nor saved; nn::summary() and a
// Trainer's first backward warn of a parameter that forward reads and no module lists.
#define MEZZO_MODULE(Class, ...)                                                                \
public:                                                                                         \
    const char* type_name() const override { return #Class; }                                   \
    void visit_fields(::mezzo::nn::FieldVisitor& visitor) override {                            \
        if (typeid(*this) != typeid(Class))                                                     \
            ::mezzo::nn::detail::note_unlisted(*this, typeid(Class), #Class);                   \
        ::mezzo::nn::detail::visit_fields(visitor, "" #__VA_ARGS__ __VA_OPT__(, ) __VA_ARGS__); \
    }

#pragma GCC visibility pop
