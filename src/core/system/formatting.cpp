// Compiles the functions of fmt that the library calls. So neither linking nor running it needs libfmt, and a
// program can be linked statically where, as on Debian, there is no libfmt.a. Only this file does so, because
// fmt's functions take three seconds to compile.
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>

#include <string>

namespace mezzo {
namespace {

// Every fmt::format() of the library calls this function. It is inline here, so it is emitted only because
// its address is taken. It is a weak symbol, so it does not clash with a libfmt that the program itself
// links.
[[gnu::used]] std::string (*const vformat)(fmt::string_view, fmt::format_args) = &fmt::vformat;
// Instances of fmt's integer formatting in a source file may call this one.
[[gnu::used]] const auto separator = &fmt::detail::thousands_sep_impl<char>;

}  // namespace
}  // namespace mezzo
