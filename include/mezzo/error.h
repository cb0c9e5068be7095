// Error, the exception type of the library, and check(). Order of a message: the op, the offending values, a
// hint.
//
//   try {
//       y = net(x);
//   } catch (const Error& error) {
//       if (error.kind() == ErrorKind::shape) std::cerr << "wrong input: " << error.what() << '\n';
//   }
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#include "mezzo/dtype.h"

#pragma GCC visibility push(default)

namespace mezzo {

class Shape;
struct Device;

enum class ErrorKind : std::uint8_t {
    shape,    // sizes or dimensions that do not fit, or are out of range
    dtype,    // an element type that the function does not take
    device,   // a device that does not exist, or tensors on different devices
    value,    // an argument out of its range
    state,    // an object that is not ready for this call, or no longer
    memory,   // an allocation that failed
    io,       // a file that cannot be read or written, or is damaged
    backend,  // a driver or library that failed
};

// The exception type of mezzo. The headers write Error(shape) for an Error of kind ErrorKind::shape. The
// object that threw stays usable. Exceptions of the caller's functions (hooks, steps, batches) are passed on
// unchanged.
class Error : public std::runtime_error {
public:
    Error(ErrorKind kind, const std::string& text);
    [[nodiscard]] ErrorKind kind() const { return kind_; }

private:
    ErrorKind kind_;
};

namespace detail {

// One piece of an error message; stored at the call, formatted only on failure.
class Item {
public:
    Item(const char* text) : kind_(Type::text) { value_.text = {text, std::char_traits<char>::length(text)}; }
    Item(std::string_view text) : kind_(Type::text) { value_.text = {text.data(), text.size()}; }
    Item(const std::string& text) : kind_(Type::text) { value_.text = {text.data(), text.size()}; }
    Item(bool value) : kind_(Type::flag) { value_.integer = value; }
    Item(int value) : kind_(Type::integer) { value_.integer = value; }
    Item(long value) : kind_(Type::integer) { value_.integer = value; }
    Item(long long value) : kind_(Type::integer) { value_.integer = value; }
    Item(unsigned value) : kind_(Type::integer) { value_.integer = value; }
    Item(unsigned long value) : kind_(Type::integer) { value_.integer = static_cast<long long>(value); }
    Item(unsigned long long value) : kind_(Type::integer) { value_.integer = static_cast<long long>(value); }
    Item(double value) : kind_(Type::real) { value_.real = value; }
    Item(Dtype dtype) : kind_(Type::dtype) { value_.dtype = dtype; }
    Item(const Shape& shape) : kind_(Type::shape) { value_.shape = &shape; }
    Item(const Device& device) : kind_(Type::device) { value_.device = &device; }
    void append_to(std::string& out) const;

private:
    enum class Type : std::uint8_t { text, flag, integer, real, dtype, shape, device };
    struct Text {
        const char* data;
        std::size_t size;
    };
    union Value {
        Text text;
        long long integer;
        double real;
        Dtype dtype;
        const Shape* shape;
        const Device* device;
    } value_;
    Type kind_;
};

[[noreturn]] void fail(ErrorKind kind, std::initializer_list<Item> items);

}  // namespace detail

// Throws Error: fail(ErrorKind::shape, "matmul: inner sizes differ, ", a.shape(), " and ", b.shape()).
template <class... Items> [[noreturn]] void fail(ErrorKind kind, const Items&... items) {
    detail::fail(kind, {detail::Item(items)...});
}

// Throws Error unless the condition holds; the text is built only then.
template <class... Items> inline void check(bool condition, ErrorKind kind, const Items&... items) {
    if (!condition) [[unlikely]]
        fail(kind, items...);
}

}  // namespace mezzo

#pragma GCC visibility pop
