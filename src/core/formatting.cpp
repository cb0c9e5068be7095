// What the library calls of fmt, compiled into it. So it needs no libfmt to be linked or to run, and a program can be linked
// statically where, as on Debian, there is no libfmt.a. In one file only: fmt takes three seconds to compile in each.
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>

#include <string>

namespace mezzo {
namespace {

// Every fmt::format() of the library calls this function. It is inline here, so that only its address brings it into the object;
// as it's a weak symbol, it gets on with a libfmt that the program itself links.
[[gnu::used]] std::string (*const vformat)(fmt::string_view, fmt::format_args) = &fmt::vformat;

}  // namespace
}  // namespace mezzo
