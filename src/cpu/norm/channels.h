// Layout of images in rows of columns (channel_loops.h) and parts, and sums over the pixels of each channel,
// for batch and group normalisation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "cpu/elementwise/strided.h"
#include "cpu/norm/channel_loops.h"

namespace mezzo::cpu {

const ChannelLoops& active_channel_loops();
// The loops over images of a dtype that is computed in R.
template <class R> const ChannelLoopsOf<R>& channel_loops_for(Dtype dtype);

// `pixels` pixels of `channels` elements each. Parts are summed apart and their sums added in order; their
// number depends on these two numbers only, so that any number of threads gives the same bits.
struct ChannelLayout {
    ChannelLayout(std::int64_t pixels, std::int64_t channels);
    std::int64_t pixels, channels;
    std::int64_t repeat, columns;  // pixels and elements in a row
    std::int64_t elements, part_elements, parts;

    std::int64_t part_end(std::int64_t part) const { return std::min(elements, (part + 1) * part_elements); }
    // Values by column, each that of the column's channel.
    template <class R> std::vector<R> by_column(const std::vector<double>& by_channel) const {
        std::vector<R> values(static_cast<std::size_t>(columns));
        for (std::int64_t j = 0; j < columns; ++j)
            values[std::size_t(j)] = R(by_channel[std::size_t(j % channels)]);
        return values;
    }
};

// The dtype to read these images in: their own if all have the same, otherwise float32 or float64. Undefined
// ones do not count.
Dtype common_dtype(std::initializer_list<Tensor> images);

// The elements of an image as `dtype`, directly or through scratch memory of the calling thread. Images in
// use at the same time have different slots.
class Elements {
public:
    Elements() = default;
    Elements(const Tensor& image, Dtype dtype, int slot);
    bool direct() const { return direct_; }
    // Null for an undefined image.
    const void* read(std::int64_t begin, std::int64_t n) const;
    // The memory to compute elements in, which close() then stores.
    void* open(std::int64_t begin, std::int64_t n) const;
    void close(std::int64_t begin, std::int64_t n, const void* values) const;

private:
    char* at(std::int64_t i) const { return base_ + i * std::int64_t(size_of(own_)); }
    char* base_ = nullptr;
    Dtype own_ = float32, as_ = float32;
    int slot_ = 0;
    bool direct_ = true;
};

// Calls body(begin, n) for pieces of [begin, end) that fit the scratch memory: for one if no scratch memory
// is needed.
template <class F> void for_pieces(const ChannelLayout& layout, std::int64_t begin, std::int64_t end,
                                   bool direct, const F& body) {
    const std::int64_t rows = std::max<std::int64_t>(1, 4096 / layout.columns);
    const std::int64_t step = direct ? end - begin : rows * layout.columns;
    for (; begin < end; begin += step) body(begin, std::min(step, end - begin));
}
// The same over all of the image, in parallel.
template <class F> void for_all_pieces(const ChannelLayout& layout, bool direct, const F& body) {
    const std::int64_t rows = (layout.elements + layout.columns - 1) / layout.columns;
    parallel_for(rows, grain / layout.columns + 1, [&](std::int64_t first, std::int64_t last) {
        for_pieces(layout, first * layout.columns, std::min(layout.elements, last * layout.columns), direct,
                   body);
    });
}
template <class F> void for_parts(const ChannelLayout& layout, const F& body) {
    parallel_for(layout.parts, grain / layout.part_elements + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t part = begin; part < end; ++part) body(part);
    });
}

// Moments per channel, over the pixels of an image that begins at element `offset`: the mean, and the sum of
// the squared deviations from it.
struct ChannelMoments {
    std::vector<double> mean, squares;
};
template <class R> ChannelMoments channel_moments(const ChannelLayout& layout, const Elements& x, Dtype dtype,
                                                  std::int64_t offset);

// The images of a backward from element `offset` on.
struct GradImages {
    Elements g, x;
    const std::uint8_t* bits = nullptr;  // of the first element; null: all are set
    Dtype dtype = float32;
    std::int64_t offset = 0;
};
// Sums per channel of g and of g (x - mean). `masked`, if not null, gets g with zeros where a bit is not set.
struct ChannelGradSums {
    std::vector<double> sums, products;
};
template <class R> ChannelGradSums channel_grad_sums(const ChannelLayout& layout, const GradImages& images,
                                                     const std::vector<double>& mean, const Elements* masked);

// The coefficients of NormaliseGradLoop per channel.
struct GradCoefficients {
    std::vector<double> scale, slope, offset;
};
template <class R> void write_x_grad(const ChannelLayout& layout, const GradImages& images,
                                     const std::vector<double>& mean, const GradCoefficients& by,
                                     const Elements& dx);

// The elements of a small tensor, and the reverse.
std::vector<double> values_of(const Tensor& x);
void store_values(const std::vector<double>& values, const Tensor& y);

}  // namespace mezzo::cpu
