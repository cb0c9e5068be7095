// fmt::print("{}\n", x) for tensors, shapes, dtypes, devices and modules. This is the only public header that
// needs {fmt}; mezzo/mezzo.h does not include it.
//
//   fmt::print("{}\n{}, {} on {}\n", x, x.shape(), x.dtype(), x.device());
//   fmt::print("{}\n", net);
#pragma once

#include "mezzo/cpp20.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <concepts>
#include <string>
#include <type_traits>

#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::detail {

// Formats a string with the usual options: width, alignment, precision. Not derived from fmt's formatter,
// which quotes strings in ranges.
class TextFormatter {
public:
    template <class Context> constexpr auto parse(Context& context) { return text_.parse(context); }
    template <class Context> auto print(const std::string& text, Context& context) const {
        return text_.format(text, context);
    }

private:
    fmt::formatter<fmt::string_view> text_;
};

}  // namespace mezzo::detail

// Tensors and modules have a begin(), but are not formatted as ranges.
template <std::derived_from<mezzo::Tensor> T, class Char> struct fmt::is_range<T, Char> : std::false_type {};
template <std::derived_from<mezzo::nn::Module> T, class Char> struct fmt::is_range<T, Char>
    : std::false_type {};

template <class T> struct fmt::formatter<T, std::enable_if_t<std::is_base_of_v<mezzo::Tensor, T>, char>>
    : mezzo::detail::TextFormatter {
    template <class Context> auto format(const mezzo::Tensor& x, Context& context) const {
        return print(x.to_string(), context);
    }
};
template <class T> struct fmt::formatter<T, std::enable_if_t<std::is_base_of_v<mezzo::nn::Module, T>, char>>
    : mezzo::detail::TextFormatter {
    template <class Context> auto format(const mezzo::nn::Module& module, Context& context) const {
        return print(module.to_string(), context);
    }
};
template <> struct fmt::formatter<mezzo::Shape> : mezzo::detail::TextFormatter {
    template <class Context> auto format(const mezzo::Shape& shape, Context& context) const {
        return print(mezzo::detail::text_of(shape), context);
    }
};
template <> struct fmt::formatter<mezzo::Dtype> : mezzo::detail::TextFormatter {
    template <class Context> auto format(mezzo::Dtype dtype, Context& context) const {
        return print(mezzo::name(dtype), context);
    }
};
template <> struct fmt::formatter<mezzo::Device> : mezzo::detail::TextFormatter {
    template <class Context> auto format(mezzo::Device device, Context& context) const {
        return print(mezzo::detail::text_of(device), context);
    }
};

#pragma GCC visibility pop
