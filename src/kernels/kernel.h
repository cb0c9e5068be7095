// Types of a kernel, and of the lists in which a backend registers its kernels.
#pragma once

#include <span>

#include "core/internal.h"
#include "mezzo/tensor.h"

// For templates with an instance per op: hides their long names from the library's symbol table.
#define MEZZO_HIDDEN [[gnu::visibility("hidden")]]

namespace mezzo {

using In = std::span<const Tensor>;
using Out = std::span<const Tensor>;

// Computes out from in. Shapes, dtypes and devices have been checked. It does not use autograd or autocast. A
// is the struct of the op's attributes (src/kernels/*.h), which also names the kernel: A::name. Unless the
// struct's comment says otherwise, results are contiguous and have the right shape and dtype.
template <class A> using Kernel = void(In in, const A& at, Out out);

// Whether a kernel takes dtypes for storage only, too, because it moves or converts elements and computes
// nothing, or because it reads codes. The struct of its attributes then has
// `static constexpr bool any_dtype = true`.
template <class A> inline constexpr bool takes_any_dtype = requires { requires A::any_dtype; };

// Identifies a kernel by its address: each attribute struct has one KernelId. The name is for errors.
struct KernelId {
    const char* name;
};
template <class A> MEZZO_INTERNAL inline constexpr KernelId kernel_id{A::name};

// A kernel whose attributes are passed by address; they are of the struct that its KernelId belongs to.
using AnyKernel = void(In in, const void* at, Out out);

struct KernelEntry {
    const KernelId* id;
    AnyKernel* run;
};
using KernelList = std::span<const KernelEntry>;

namespace detail {

template <class A> A attributes_of(Kernel<A>*);
template <class A, Kernel<A>* kernel> MEZZO_HIDDEN void run_kernel(In in, const void* at, Out out) {
    kernel(in, *static_cast<const A*>(at), out);
}

}  // namespace detail

// A backend's kernel in its list: kernel_entry<layer_norm>(). The type of its attributes identifies the op.
template <auto* kernel> constexpr KernelEntry kernel_entry() {
    using A = decltype(detail::attributes_of(kernel));
    return {&kernel_id<A>, detail::run_kernel<A, kernel>};
}

}  // namespace mezzo
