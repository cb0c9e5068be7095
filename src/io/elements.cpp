#include "io/elements.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/visit_dtype.h"
#include "mezzo/error.h"

namespace mezzo::io {

Elements elements_of(const Tensor& tensor) {
    if (tensor.numel() == 0) return {};
    const void* const data = visit_dtype<Dtypes::all>(
        tensor.dtype(), [&]<class T>(std::type_identity<T>) -> const void* { return tensor.data<T>(); });
    // Only readers of files write through this pointer, to tensors that nothing else refers to yet.
    return {const_cast<void*>(data), std::size_t(tensor.numel()) * size_of(tensor.dtype())};
}

namespace {

template <class From, class To>
void widen(const std::string& where, const std::vector<char>& from, To* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        From value;
        std::memcpy(&value, from.data() + i * sizeof value, sizeof value);
        if constexpr (std::is_same_v<From, std::uint64_t>)
            check(value <= std::uint64_t(std::numeric_limits<std::int64_t>::max()), ErrorKind::value, where,
                  ": element ", i, " does not fit int64");
        to[i] = To(value);
    }
}

}  // namespace

void widen_integers(const std::string& where, const std::vector<char>& from, bool is_signed, int bytes,
                    const Tensor& to) {
    const auto count = std::size_t(to.numel());
    if (count == 0) return;
    if (bytes == 2 && is_signed)
        widen<std::int16_t>(where, from, to.mutable_data<std::int32_t>(), count);
    else if (bytes == 2)
        widen<std::uint16_t>(where, from, to.mutable_data<std::int32_t>(), count);
    else if (bytes == 4)
        widen<std::uint32_t>(where, from, to.mutable_data<std::int64_t>(), count);
    else
        widen<std::uint64_t>(where, from, to.mutable_data<std::int64_t>(), count);
}

}  // namespace mezzo::io
