#include "insight/ranges.h"

#include "core/step_recorder.h"
#include "core/tensor_impl.h"
#include "kernels/dispatch.h"
#include "kernels/range.h"
#include "mezzo/autograd.h"

namespace mezzo::insight {

namespace {
const KernelOf<kernels::RangeStatistics> range_statistics;
}

Tensor in_one_piece(const Tensor& x) {
    const NoGrad plain;
    return x.is_contiguous() ? x.detach() : x.detach().contiguous();
}

RangeTable::Chunk& RangeTable::chunk_on(Device device) {
    for (auto chunk = chunks_.rbegin(); chunk != chunks_.rend(); ++chunk)
        if (chunk->values.device() == device && std::int64_t(chunk->places.size()) < chunk_rows)
            return *chunk;
    const NoGrad plain;
    return chunks_.emplace_back(
        Chunk{zeros({chunk_rows, columns}, {.dtype = float64, .device = device}), {}});
}

int RangeTable::add(const Tensor& x) {
    check(thread_state.recorder == nullptr, ErrorKind::state,
          "insight: ranges cannot be read inside a captured step; run the step eagerly under the trace");
    Chunk& chunk = chunk_on(x.device());
    const auto row = std::int64_t(chunk.places.size());
    const Tensor cell = make_tensor(chunk.values->storage, {columns}, {1}, row * columns, float64);
    range_statistics({{in_one_piece(x)}}, {}, cell);
    const int place = int(elements_.size());
    chunk.places.push_back(place);
    elements_.push_back(x.numel());
    return place;
}

std::vector<Range> RangeTable::read() const {
    std::vector<Range> result(elements_.size());
    for (const Chunk& chunk : chunks_) {
        const std::vector<double> values = chunk.values.to_vector<double>();
        for (std::size_t row = 0; row < chunk.places.size(); ++row) {
            const double* const cell = values.data() + row * std::size_t(columns);
            const auto place = std::size_t(chunk.places[row]);
            result[place] = {cell[0], std::int64_t(cell[1]), std::int64_t(cell[2]), std::int64_t(cell[3]),
                             elements_[place]};
        }
    }
    return result;
}

void RangeTable::clear() {
    chunks_.clear();
    elements_.clear();
}

Range range_of(const Tensor& x) {
    check(x.defined(), ErrorKind::value, "range_of: the tensor is undefined");
    check(is_floating(x.dtype()), ErrorKind::dtype, "range_of: the tensor is ", x.dtype(),
          "; only floating tensors have a range to leave");
    RangeTable table;
    table.add(x);
    return table.read()[0];
}

std::vector<GradientRange> overflowed_gradients(const nn::Module& model) {
    return overflowed_of(model.named_parameters());
}

std::vector<GradientRange> overflowed_of(const StateDict& parameters) {
    RangeTable table;
    std::vector<GradientRange> all, result;
    for (const auto& [name, parameter] : parameters) {
        const Tensor gradient = parameter.grad();
        if (!gradient.defined()) continue;
        all.push_back({name, gradient.dtype(), {}});
        table.add(gradient);
    }
    const std::vector<Range> ranges = table.read();
    for (std::size_t i = 0; i < all.size(); ++i) {
        all[i].range = ranges[i];
        if (!ranges[i].finite()) result.push_back(std::move(all[i]));
    }
    return result;
}

}  // namespace mezzo::insight
