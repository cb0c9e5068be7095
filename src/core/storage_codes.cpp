#include "core/storage_codes.h"

#include <array>
#include <bit>

#include "core/values.h"
#include "mezzo/error.h"

namespace mezzo {
namespace {

template <class T> constexpr std::array<float, 256> values_of() {
    std::array<float, 256> values{};
    for (std::size_t code = 0; code < values.size(); ++code)
        values[code] = static_cast<float>(std::bit_cast<T>(static_cast<std::uint8_t>(code)));
    return values;
}
template <class T> constexpr std::array<float, 256> values = values_of<T>();

}  // namespace

const float* values_of_codes(Dtype dtype) {
    return visit_dtype<Dtypes::storage>(
        dtype, []<class T>(std::type_identity<T>) -> const float* { return values<T>.data(); });
}

std::uint8_t code_of(Scalar value, Dtype dtype) {
    return visit_dtype<Dtypes::storage>(dtype, [value]<class T>(std::type_identity<T>) {
        const T element = value.is_integer() ? convert_value<T>(value.to<std::int64_t>())
                                             : convert_value<T>(value.to<double>());
        return std::bit_cast<std::uint8_t>(element);
    });
}

void refuse_storage_only(const char* op, Dtype dtype) {
    const bool weight = dtype == int8 || dtype == float8_e4m3fn;  // perhaps a view of one, without its scale
    fail(ErrorKind::dtype, op, ": ", dtype,
         " is for storage only, and the op computes; convert it with to(), as in x.to(float32)",
         weight ? ", or a weight of quantize_weights() with dequantize_weight()" : "");
}

}  // namespace mezzo
