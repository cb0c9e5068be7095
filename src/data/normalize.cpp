#include "data/normalize.h"

#include <algorithm>
#include <cmath>

#include "core/enumerators.h"
#include "core/tensor_impl.h"
#include "core/visit_dtype.h"
#include "cpu/parallel.h"

namespace mezzo::data {

namespace {

// `tables` has 256 numbers for each channel; one table serves any number of channels.
template <class T>
void look_up(const std::uint8_t* from, std::int64_t count, const T* tables, T* to, std::size_t channels) {
    const std::uint8_t* const end = from + count;
    if (channels == 1) {
        for (; from != end; ++from) *to++ = tables[*from];
    } else if (channels == 3) {  // three loads, then three stores
        for (; from != end; from += 3, to += 3) {
            const T red = tables[from[0]], green = tables[256 + from[1]], blue = tables[512 + from[2]];
            to[0] = red;
            to[1] = green;
            to[2] = blue;
        }
    } else {
        for (; from != end; from += channels)
            for (std::size_t c = 0; c < channels; ++c) *to++ = tables[256 * c + from[c]];
    }
}

}  // namespace

void check_normalization(const char* op, const NormalizeOptions& options) {
    for (const double mean : options.mean.values())
        for (const double stddev : options.stddev.values())
            check(std::isfinite(mean) && std::isfinite(stddev) && stddev > 0, ErrorKind::value, op,
                  ": mean is ", mean, " and stddev ", stddev, "; stddev must be positive");
    check_dtype(op, options.dtype);
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
    for (std::int64_t c = 0; c < std::int64_t(channels_); ++c)
        for (int v = 0; v < 256; ++v) values.push_back((v / 255.0 - options.mean[c]) / options.stddev[c]);
    tables_ = Tensor::from<double>(values, {std::int64_t(channels_), 256}, {.dtype = options.dtype});
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
