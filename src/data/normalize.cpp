#include "data/normalize.h"

#include <algorithm>
#include <cmath>

#include "core/tensor_impl.h"
#include "core/visit_dtype.h"
#include "cpu/parallel.h"

namespace mezzo::data {

namespace {

// For a number of channels that the compiler knows; 1 for one table.
template <std::size_t channels, class T>
void look_up(const std::uint8_t* from, std::int64_t count, const T* table, T* to) {
    for (std::int64_t i = 0; i < count; i += std::int64_t(channels))
        for (std::size_t c = 0; c < channels; ++c)
            to[std::size_t(i) + c] = table[from[std::size_t(i) + c] * channels + c];
}

template <class T>
void look_up(const std::uint8_t* from, std::int64_t count, const T* table, T* to, std::size_t channels) {
    if (channels == 1) return look_up<1>(from, count, table, to);
    if (channels == 3) return look_up<3>(from, count, table, to);
    std::size_t c = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        to[i] = table[from[i] * channels + c];
        if (++c == channels) c = 0;
    }
}

}  // namespace

void check_normalization(const char* op, const NormalizeOptions& options) {
    for (const double mean : options.mean.values())
        for (const double stddev : options.stddev.values())
            check(std::isfinite(mean) && std::isfinite(stddev) && stddev > 0, ErrorKind::value, op,
                  ": mean is ", mean, " and stddev ", stddev, "; stddev must be positive");
    check(is_floating(options.dtype), ErrorKind::dtype, op, ": dtype is ", options.dtype,
          "; it must be floating");
    check(!options.mean.values().empty() && !options.stddev.values().empty(), ErrorKind::value, op,
          ": mean or stddev has no value");
}

void check_channels(const char* op, const NormalizeOptions& options, std::int64_t channels) {
    check(options.mean.fits(channels) && options.stddev.fits(channels), ErrorKind::shape, op, ": mean has ",
          options.mean.values().size(), " values and stddev ", options.stddev.values().size(),
          ", the samples have ", channels, " channels; one value serves all of them");
}

Normalizer::Normalizer(const NormalizeOptions& options)
    : channels_(std::max(options.mean.values().size(), options.stddev.values().size())) {
    std::vector<double> values;
    for (int v = 0; v < 256; ++v)
        for (std::size_t c = 0; c < channels_; ++c)
            values.push_back((v / 255.0 - options.mean[std::int64_t(c)]) / options.stddev[std::int64_t(c)]);
    tables_ = Tensor::from<double>(values, {256, std::int64_t(channels_)}, {.dtype = options.dtype});
}

void Normalizer::write(const std::uint8_t* from, std::int64_t count, const Tensor& to,
                       std::int64_t first) const {
    visit_dtype<Dtypes::floating>(to.dtype(), [&](auto type) {
        using T = typename decltype(type)::type;
        look_up(from, count, static_cast<const T*>(raw(tables_)), static_cast<T*>(raw(to)) + first,
                channels_);
    });
}

Tensor normalize(const Tensor& x, const NormalizeOptions& options) {
    check_normalization("normalize", options);
    check(x.dtype() == uint8, ErrorKind::dtype, "normalize: x is ", x.dtype(), "; it must be uint8");
    check(x.device() == cpu_device, ErrorKind::device, "normalize: x is on ", x.device(),
          "; bytes become numbers on the CPU");
    const bool plain = options.mean.values().size() == 1 && options.stddev.values().size() == 1;
    check(x.dim() >= 1 || plain, ErrorKind::shape, "normalize: x ", x.shape(), " has no channels");
    const std::int64_t channels = x.dim() == 0 ? 1 : x.size(-1);
    check_channels("normalize", options, channels);
    const Tensor packed = x.contiguous(), result = empty(x.shape(), {.dtype = options.dtype});
    if (x.numel() == 0) return result;
    const Normalizer table(options);
    const std::uint8_t* const from = packed.data<std::uint8_t>();
    cpu::parallel_for(
        x.numel() / channels, 1 + (1 << 16) / channels, [&](std::int64_t begin, std::int64_t end) {
            table.write(from + begin * channels, (end - begin) * channels, result, begin * channels);
        });
    return result;
}

}  // namespace mezzo::data
