// Collective calls of a group on tensors. Each begins with an exchange of call records
// (distributed/call_record.h).
#include "mezzo/distributed/group.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "autograd/op.h"
#include "core/enumerators.h"
#include "core/fnv1a.h"
#include "core/step_recorder.h"
#include "core/storage_codes.h"
#include "core/tensor_impl.h"
#include "distributed/call_record.h"
#include "distributed/group_impl.h"
#include "distributed/perform.h"
#include "mezzo/autograd.h"
#include "mezzo/error.h"

namespace mezzo::distributed {
namespace {

std::uint64_t hash_of(const Shape& shape) {
    Fnv1a hash;
    for (const std::int64_t size : shape) hash.add(std::uint64_t(size));
    hash.add(std::uint64_t(shape.size()));
    return hash.value();
}

Record record_of(Call call, const Tensor& x) {
    return {.call = call, .dtype = x.dtype(), .elements = x.numel(), .shape = hash_of(x.shape())};
}

void check_target(const char* op, const Tensor& x) {
    check(x.defined(), ErrorKind::value, op, ": the tensor is undefined");
    check(!(grad_enabled() && tracked(x)), ErrorKind::state, op,
          ": the tensor takes part in recorded history, and in-place writes are not differentiable; open a "
          "NoGrad scope");
    const Strides& strides = x.strides();
    for (int d = 0; d < x.dim(); ++d)
        check(strides[d] != 0 || x.size(d) <= 1, ErrorKind::state, op,
              ": several elements of this expanded tensor share one place; write to a clone()");
}

// Returns the dtype in which elements of `dtype` are reduced.
Dtype reduced_in(Dtype dtype) {
    if (dtype == boolean) return uint8;
    if (!is_floating(dtype)) return int64;
    return is_16bit(dtype) ? float32 : dtype;
}

// Returns a contiguous copy of x as `dtype`, on x's device if its engine can send from there, otherwise in
// host memory.
Tensor sendable(const GroupImpl& group, const char* op, const Tensor& x, Dtype dtype) {
    const NoGrad no_grad;
    const bool stays = group.devices().suits(x.device());
    group.devices().note_elsewhere(x.device());
    if (thread_state.recorder != nullptr && group.place().size > 1)
        check(stays && group.devices().connected() != nullptr, ErrorKind::state, op,
              ": only tensors that travel by NCCL can be exchanged in a captured step; Group::engine() says "
              "what "
              "they travel by");
    const Tensor copy = empty(x.shape(), {.dtype = dtype, .device = stays ? x.device() : cpu_device});
    copy.copy_(x);
    return copy;
}

char* bytes_of(const Tensor& x) { return x->bytes(); }
std::size_t size_in_bytes(const Tensor& x) { return std::size_t(x.numel()) * size_of(x.dtype()); }

void reduce(const Group& group, const char* op, const Record& record, const Tensor& values) {
    if (values.numel() == 0) return static_cast<void>(exchange(group.impl(), record));
    perform(
        group, op, record, {values},
        [&](Collectives& engine) {
            in_host_memory(values, [&](const Tensor& host) {
                engine.all_reduce(bytes_of(host), host.numel(), host.dtype(), record.op);
            });
        },
        [&](DeviceCollectives& engine) {
            engine.all_reduce(raw(values), values.numel(), values.dtype(), DeviceReduction(record.op));
        });
}

}  // namespace

const char* name(ReduceOp op) {
    constexpr const char* names[] = {"sum", "mean", "min", "max"};
    return std::size_t(op) < std::size(names) ? names[std::size_t(op)] : "an unknown operation";
}

Group::Group(GroupImpl* impl) : impl_(impl) {}
Group::Group(const Group& other) = default;
Group& Group::operator=(const Group& other) & = default;
Group::~Group() = default;

GroupImpl& Group::impl() const { return static_cast<GroupImpl&>(*impl_.operator->()); }

Group make_group(const RankInfo& place, std::unique_ptr<Collectives> engine, std::unique_ptr<Control> control,
                 const EngineTimes& times) {
    return Group(new GroupImpl(place, std::move(engine), std::move(control), times));
}

int Group::rank() const { return impl().place().rank; }
int Group::size() const { return impl().place().size; }
int Group::local_rank() const { return impl().place().local_rank; }
int Group::local_size() const { return impl().place().local_size; }

std::string Group::engine() const { return impl().engine_name(); }

data::Shard Group::shard() const { return {.rank = rank(), .size = size()}; }

Device Group::device() const {
    const int devices = cuda_device_count();
    return devices > 0 ? Device(DeviceType::cuda, local_rank() % devices) : cpu_device;
}

void Group::all_reduce_(const Tensor& x, ReduceOp op) const {
    check_target("all_reduce_", x);
    check_enumerator("all_reduce_", "op", op, ReduceOp::max);
    check_computes("all_reduce_", x.dtype());
    check(op != ReduceOp::mean || is_floating(x.dtype()), ErrorKind::dtype, "all_reduce_: no mean of ",
          x.dtype(), "; convert it to float32, or use mean()");
    check(op != ReduceOp::sum || x.dtype() != boolean, ErrorKind::dtype,
          "all_reduce_: no sum of boolean; take max for \"any\", min for \"all\", or convert it to int64");
    if (size() == 1) return;
    const Tensor values = sendable(impl(), "all_reduce_", x, reduced_in(x.dtype()));
    Record record = record_of(Call::all_reduce, x);
    record.op = op;
    reduce(*this, "all_reduce_", record, values);
    x.copy_(values);
}

Tensor Group::all_gather(const Tensor& x) const {
    check(x.defined(), ErrorKind::value, "all_gather: the tensor is undefined");
    check(x.dim() < max_dims, ErrorKind::shape, "all_gather: ", x.shape(),
          " has no room for one more dimension; at most ", max_dims);
    const NoGrad no_grad;
    const Tensor mine = sendable(impl(), "all_gather", x, x.dtype());
    Shape shape{size()};
    for (const std::int64_t n : x.shape()) shape.push_back(n);
    const Tensor all = empty(shape, {.dtype = x.dtype(), .device = mine.device()});
    gather(*this, "all_gather", record_of(Call::all_gather, x), mine, all, size_in_bytes(mine));
    return all.to(x.device());
}

void Group::broadcast_(const Tensor& x, int root) const {
    check_target("broadcast_", x);
    check(root >= 0 && root < size(), ErrorKind::value, "broadcast_: root ", root,
          " is none of the ranks 0 to ", size() - 1);
    if (size() == 1) return;
    const Tensor values = sendable(impl(), "broadcast_", x, x.dtype());
    Record record = record_of(Call::broadcast, x);
    record.root = root;
    const std::size_t bytes = size_in_bytes(values);
    perform(
        *this, "broadcast_", record, {values},
        [&](Collectives& engine) {
            if (bytes == 0) return;
            in_host_memory(values,
                           [&](const Tensor& host) { engine.broadcast(bytes_of(host), bytes, root); });
        },
        [&](DeviceCollectives& engine) {
            if (bytes != 0) engine.broadcast(raw(values), bytes, root);
        });
    if (rank() != root) x.copy_(values);
}

Tensor Group::mean(const Tensor& x) const {
    check(x.defined(), ErrorKind::value, "mean: the tensor is undefined");
    check_computes("mean", x.dtype());
    const NoGrad no_grad;
    const Dtype dtype = is_floating(x.dtype()) ? x.dtype() : float32;
    const Tensor values = sendable(impl(), "mean", x, is_16bit(dtype) ? float32 : dtype);
    Record record = record_of(Call::mean, x);
    record.op = ReduceOp::mean;
    reduce(*this, "mean", record, values);
    return values.to(dtype).to(x.device());
}

Tensor Group::weight(std::int64_t count) const {
    check(count >= 0, ErrorKind::value, "weight: got a count of ", count,
          "; it is a number of rows or tokens");
    const std::vector<Record> all = exchange(impl(), {.call = Call::weight, .elements = count});
    double sum = 0;
    for (const Record& record : all) sum += double(record.elements);
    return scalar(sum > 0 ? double(count) * size() / sum : 0, {.device = device()});
}

void Group::barrier() const { exchange(impl(), {.call = Call::barrier}); }

bool Group::all(bool value) const {
    for (const Record& record : exchange(impl(), {.call = Call::all, .flag = value}))
        if (!record.flag) return false;
    return true;
}

bool Group::any(bool value) const {
    for (const Record& record : exchange(impl(), {.call = Call::any, .flag = value}))
        if (record.flag) return true;
    return false;
}

}  // namespace mezzo::distributed
