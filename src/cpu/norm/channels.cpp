#include "cpu/norm/channels.h"

#include <numeric>

#include "cpu/elementwise/loop_tables.h"
#include "cpu/isa/isa_tables.h"

namespace mezzo::cpu {

const ChannelLoops& active_channel_loops() {
    return loops_for<ChannelLoops, channels_portable, channels_avx2, channels_avx512>(active_isa());
}
template <> const ChannelLoopsOf<float>& channel_loops_for<float>(Dtype dtype) {
    return active_channel_loops().narrow[convert_index(dtype)];
}
template <> const ChannelLoopsOf<double>& channel_loops_for<double>(Dtype) {
    return active_channel_loops().f64;
}

ChannelLayout::ChannelLayout(std::int64_t pixel_count, std::int64_t channel_count)
    : pixels(pixel_count), channels(channel_count), elements(pixel_count * channel_count) {
    const std::int64_t unit = 16 / std::gcd<std::int64_t>(channels, 16);
    repeat = (64 + unit * channels - 1) / (unit * channels) * unit;
    columns = repeat * channels;
    const std::int64_t rows = (elements + columns - 1) / columns;
    // At least 64 rows and 32,768 elements, so that adding parts costs little; at most 4,096 rows, because
    // float sums of more lose digits; otherwise 128 parts.
    const std::int64_t least = std::max<std::int64_t>(64, 32768 / columns);
    const std::int64_t part_rows = std::clamp((rows + 127) / 128, least, std::max<std::int64_t>(least, 4096));
    part_elements = part_rows * columns;
    parts = (rows + part_rows - 1) / part_rows;
}

Dtype common_dtype(std::initializer_list<Tensor> images) {
    const Tensor* first = nullptr;
    bool same = true, wide = false;
    for (const Tensor& image : images) {
        if (!image.defined()) continue;
        if (!first) first = &image;
        same = same && image->dtype == (*first)->dtype;
        wide = wide || image->dtype == float64;
    }
    if (same) return (*first)->dtype;
    return wide ? float64 : float32;
}

namespace {

// Memory of the calling thread; slots in use at the same time differ.
void* scratch(std::int64_t bytes, int slot) {
    thread_local std::vector<char> memory[3];
    if (std::int64_t(memory[slot].size()) < bytes) memory[slot].resize(std::size_t(bytes));
    return memory[slot].data();
}

}  // namespace

Elements::Elements(const Tensor& image, Dtype dtype, int slot) : as_(dtype), slot_(slot) {
    if (!image.defined() || image->numel == 0) return;
    base_ = image->bytes();
    own_ = image->dtype;
    direct_ = own_ == as_;
}
const void* Elements::read(std::int64_t begin, std::int64_t n) const {
    if (direct_) return base_ ? at(begin) : nullptr;
    void* const values = scratch(n * std::int64_t(size_of(as_)), slot_);
    convert(at(begin), own_, values, as_, n);
    return values;
}
void* Elements::open(std::int64_t begin, std::int64_t n) const {
    if (direct_) return base_ ? at(begin) : nullptr;
    return scratch(n * std::int64_t(size_of(as_)), slot_);
}
void Elements::close(std::int64_t begin, std::int64_t n, const void* values) const {
    if (!direct_) convert(values, as_, at(begin), own_, n);
}

namespace {

// A part's sums, one vector per column after the other.
template <class R> struct PartSums {
    PartSums(const ChannelLayout& layout, int vectors)
        : columns(layout.columns),
          width(vectors * layout.columns),
          values(static_cast<std::size_t>(layout.parts * width)) {}
    R* of(std::int64_t part, int vector) { return values.data() + part * width + vector * columns; }
    const R* of(std::int64_t part, int vector) const {
        return values.data() + part * width + vector * columns;
    }
    std::int64_t columns, width;
    std::vector<R> values;
};

// Adds (count, mean, squares) to a total of the same kind: Chan, Golub and LeVeque, "Updating formulae and a
// pairwise algorithm for computing sample variances", 1979. share = count / (total + count).
void add_moments(double& mean, double& squares, double part_mean, double part_squares, double total,
                 double share) {
    const double apart = part_mean - mean;
    mean += apart * share;
    squares += part_squares + apart * apart * total * share;
}

// Adds the sums of all parts for columns [first, last), where a part has rows(part) rows.
template <class R, class Rows> void join_parts(const PartSums<R>& sums, std::int64_t parts,
                                               std::int64_t first, std::int64_t last, const Rows& rows,
                                               ChannelMoments& columns) {
    double *const mean = columns.mean.data(), *const squares = columns.squares.data();
    double total = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
        const double count = rows(part);
        if (count == 0) break;
        const double each = 1 / count, share = count / (total + count);
        const R *const pivot = sums.of(part, 0), *const s = sums.of(part, 1), *const q = sums.of(part, 2);
        for (std::int64_t j = first; j < last; ++j) {
            const double about = double(s[j]) * each;
            const double rest = double(q[j]) - double(s[j]) * about;
            add_moments(mean[j], squares[j], double(pivot[j]) + about, rest < 0 ? 0 : rest, total, share);
        }
        total += count;
    }
}

template <class R> PartSums<R> moments_of_parts(const ChannelLayout& layout, const Elements& x, Dtype dtype,
                                                std::int64_t offset) {
    PartSums<R> sums(layout, 3);
    const auto run = channel_loops_for<R>(dtype).moments;
    for_parts(layout, [&](std::int64_t part) {
        const std::int64_t begin = part * layout.part_elements, end = layout.part_end(part);
        R* const pivot = sums.of(part, 0);
        const std::int64_t first_row = std::min(layout.columns, end - begin);
        convert(x.read(offset + begin, first_row), dtype, pivot, mezzo::dtype_of<R>(), first_row);
        for_pieces(layout, begin, end, x.direct(), [&](std::int64_t i, std::int64_t n) {
            run({x.read(offset + i, n), n, layout.columns, pivot, sums.of(part, 1), sums.of(part, 2)});
        });
    });
    return sums;
}

// Joins the moments of columns to those of channels: the pixels of a row in order.
ChannelMoments moments_of_channels(const ChannelLayout& layout, ChannelMoments&& columns) {
    if (layout.repeat == 1) return std::move(columns);
    ChannelMoments result{std::vector<double>(std::size_t(layout.channels)),
                          std::vector<double>(std::size_t(layout.channels))};
    double total = 0;
    for (std::int64_t k = 0; k < layout.repeat; ++k) {
        const auto count = double((layout.pixels + layout.repeat - 1 - k) / layout.repeat);
        if (count == 0) break;
        const double share = count / (total + count);
        for (std::int64_t c = 0; c < layout.channels; ++c) {
            const auto to = std::size_t(c), from = std::size_t(k * layout.channels + c);
            add_moments(result.mean[to], result.squares[to], columns.mean[from], columns.squares[from], total,
                        share);
        }
        total += count;
    }
    return result;
}

}  // namespace

template <class R> ChannelMoments channel_moments(const ChannelLayout& layout, const Elements& x, Dtype dtype,
                                                  std::int64_t offset) {
    const PartSums<R> sums = moments_of_parts<R>(layout, x, dtype, offset);
    ChannelMoments columns{std::vector<double>(std::size_t(layout.columns)),
                           std::vector<double>(std::size_t(layout.columns))};
    // The last row may end within a row of columns; those behind its end have a row less.
    const std::int64_t row_count = layout.elements / layout.columns, ended = layout.elements % layout.columns;
    const std::int64_t part_rows = layout.part_elements / layout.columns;
    const auto rows = [&](std::int64_t part, std::int64_t all) {
        return double(std::min(part_rows, all - part * part_rows));
    };
    parallel_for(layout.columns, grain / (layout.parts + 1) + 1, [&](std::int64_t first, std::int64_t last) {
        join_parts(
            sums, layout.parts, first, std::min(ended, last),
            [&](std::int64_t part) { return rows(part, row_count + 1); }, columns);
        join_parts(
            sums, layout.parts, std::max(ended, first), last,
            [&](std::int64_t part) { return rows(part, row_count); }, columns);
    });
    return moments_of_channels(layout, std::move(columns));
}
template ChannelMoments channel_moments<float>(const ChannelLayout&, const Elements&, Dtype, std::int64_t);
template ChannelMoments channel_moments<double>(const ChannelLayout&, const Elements&, Dtype, std::int64_t);

namespace {

// The sums of vector `vector` over all parts and all columns of a channel.
template <class R>
std::vector<double> joined(const ChannelLayout& layout, const PartSums<R>& sums, int vector) {
    std::vector<double> columns(std::size_t(layout.columns)), result(std::size_t(layout.channels));
    parallel_for(layout.columns, grain / (layout.parts + 1) + 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t part = 0; part < layout.parts; ++part)
            real_loops<R>().add_to_double(columns.data() + first, sums.of(part, vector) + first, 1, 0,
                                          last - first);
    });
    if (layout.repeat == 1) return columns;
    for (std::int64_t k = 0; k < layout.repeat; ++k)
        for (std::int64_t c = 0; c < layout.channels; ++c)
            result[std::size_t(c)] += columns[std::size_t(k * layout.channels + c)];
    return result;
}

}  // namespace

template <class R> ChannelGradSums channel_grad_sums(const ChannelLayout& layout, const GradImages& images,
                                                     const std::vector<double>& mean,
                                                     const Elements* masked) {
    PartSums<R> sums(layout, 2);
    const std::vector<R> centre = layout.by_column<R>(mean);
    const auto run = channel_loops_for<R>(images.dtype).grad_sums;
    const bool direct = images.g.direct() && images.x.direct() && (!masked || masked->direct());
    for_parts(layout, [&](std::int64_t part) {
        const auto piece = [&](std::int64_t i, std::int64_t n) {
            const std::int64_t at = images.offset + i;
            void* const to = masked ? masked->open(at, n) : nullptr;
            run({images.g.read(at, n), images.x.read(at, n), images.bits ? images.bits + i / 8 : nullptr, to,
                 n, layout.columns, centre.data(), sums.of(part, 0), sums.of(part, 1)});
            if (masked) masked->close(at, n, to);
        };
        for_pieces(layout, part * layout.part_elements, layout.part_end(part), direct, piece);
    });
    return {joined(layout, sums, 0), joined(layout, sums, 1)};
}
template ChannelGradSums channel_grad_sums<float>(const ChannelLayout&, const GradImages&,
                                                  const std::vector<double>&, const Elements*);
template ChannelGradSums channel_grad_sums<double>(const ChannelLayout&, const GradImages&,
                                                   const std::vector<double>&, const Elements*);

template <class R> void write_x_grad(const ChannelLayout& layout, const GradImages& images,
                                     const std::vector<double>& mean, const GradCoefficients& by,
                                     const Elements& dx) {
    const std::vector<R> centre = layout.by_column<R>(mean), scale = layout.by_column<R>(by.scale),
                         slope = layout.by_column<R>(by.slope), offset = layout.by_column<R>(by.offset);
    const auto run = channel_loops_for<R>(images.dtype).normalise_grad;
    const bool direct = images.g.direct() && images.x.direct() && dx.direct();
    for_all_pieces(layout, direct, [&](std::int64_t i, std::int64_t n) {
        const std::int64_t at = images.offset + i;
        void* const to = dx.open(at, n);
        run({images.g.read(at, n), images.x.read(at, n), images.bits ? images.bits + i / 8 : nullptr, to, n,
             layout.columns, centre.data(), scale.data(), slope.data(), offset.data()});
        dx.close(at, n, to);
    });
}
template void write_x_grad<float>(const ChannelLayout&, const GradImages&, const std::vector<double>&,
                                  const GradCoefficients&, const Elements&);
template void write_x_grad<double>(const ChannelLayout&, const GradImages&, const std::vector<double>&,
                                   const GradCoefficients&, const Elements&);

std::vector<double> values_of(const Tensor& x) {
    std::vector<double> values(std::size_t(x->numel));
    if (x->numel) convert(x->bytes(), x->dtype, values.data(), float64, x->numel);
    return values;
}
void store_values(const std::vector<double>& values, const Tensor& y) {
    if (!values.empty()) convert(values.data(), float64, y->bytes(), y->dtype, y->numel);
}

}  // namespace mezzo::cpu
