// The attributes of one call of an op, stored as a value whose type only the op knows.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

#include "kernels/kernel.h"

namespace mezzo {

// Attributes of ops without attributes and without a kernel.
struct NoAttributes {
    static constexpr const char* name = "";
};

// Size, copy and destroy functions of an attribute struct. A null `copy` means a copy of the bytes; a null
// `destroy` means that nothing has to be destroyed.
struct AttributesType {
    std::size_t size;
    void (*copy)(void* to, const void* from);
    void (*destroy)(void* value);
};

namespace detail {

template <class A> MEZZO_HIDDEN constexpr AttributesType attributes_type_of() {
    static_assert(alignof(A) <= alignof(std::max_align_t), "attributes are stored with the usual alignment");
    if constexpr (std::is_trivially_copyable_v<A>)
        return {std::is_empty_v<A> ? 0 : sizeof(A), nullptr, nullptr};
    else
        return {sizeof(A), [](void* to, const void* from) { new (to) A(*static_cast<const A*>(from)); },
                [](void* value) { static_cast<A*>(value)->~A(); }};
}

}  // namespace detail

template <class A>
MEZZO_HIDDEN inline constexpr AttributesType attributes_type = detail::attributes_type_of<A>();

// A reference to attributes that the caller owns.
struct AttributesRef {
    const AttributesType* type = &attributes_type<NoAttributes>;
    const void* value = nullptr;

    AttributesRef() = default;
    template <class A> AttributesRef(const A& at) : type(&attributes_type<A>), value(&at) {}
};

// A copy of attributes. Up to `room` bytes, enough for axes or for any op's scalars and flags, are stored
// inside the object.
class Attributes {
public:
    static constexpr std::size_t room = 80;

    Attributes() = default;
    Attributes(const Attributes&) = delete;
    Attributes& operator=(const Attributes&) = delete;
    ~Attributes() { clear(); }

    void set(const AttributesRef& from);
    const AttributesType* type() const { return type_; }
    const void* value() const { return type_->size <= room ? inside_ : outside_; }
    // A must be the struct that they were set from.
    template <class A> const A& as() const {
        return *static_cast<const A*>(static_cast<const void*>(sizeof(A) <= room ? inside_ : outside_));
    }

private:
    void clear() noexcept;

    const AttributesType* type_ = &attributes_type<NoAttributes>;
    union {
        alignas(std::max_align_t) std::byte inside_[room];
        std::byte* outside_;
    };
};

}  // namespace mezzo
