#include "tests/third_backend/backend.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "core/values.h"
#include "kernels/copy.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_list.h"
#include "kernels/matmul.h"
#include "kernels/registry.h"

namespace mezzo::test {

namespace {

// Added to the address of hidden memory: no process has anything there.
constexpr std::uintptr_t hidden = std::uintptr_t(1) << 62;

char* host(const void* p) { return reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(p) & ~hidden); }

int device_count() { return 1; }
const char* hardware_name(int) { return "malloc"; }
// The library holds some memory as long as the process lives, and a leak sanitizer finds it only by its
// address.
struct Addresses {
    std::mutex mutex;
    std::set<void*> all;
};
Addresses& addresses() {
    static Addresses* const kept = new Addresses;
    return *kept;
}

void* allocate(int, std::size_t bytes) {
    void* const p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (p == nullptr) return p;
    const std::lock_guard lock(addresses().mutex);
    addresses().all.insert(p);
    return host(p) + hidden;
}
void release(int, void* p) {
    const std::lock_guard lock(addresses().mutex);
    addresses().all.erase(host(p));
    std::free(host(p));
}
void copy(int, void* to, const void* from, std::size_t bytes) {
    if (bytes != 0) std::memmove(host(to), host(from), bytes);
}
void synchronize(int) {}

double get(const Tensor& x, std::int64_t i) {
    return visit_dtype<Dtypes::all>(x.dtype(), [&](auto type) {
        using T = typename decltype(type)::type;
        return convert_value<double>(reinterpret_cast<const T*>(host(raw(x)))[i]);
    });
}
void put(const Tensor& y, std::int64_t i, double value) {
    visit_dtype<Dtypes::all>(y.dtype(), [&](auto type) {
        using T = typename decltype(type)::type;
        reinterpret_cast<T*>(host(raw(y)))[i] = convert_value<T>(value);
    });
}

// The elements of x, repeated over the shape, in row-major order.
std::vector<double> values(const Tensor& x, const Shape& shape) {
    std::vector<double> result;
    for_each_offset(shape, x.expand(shape).strides(), [&](std::int64_t i) { result.push_back(get(x, i)); });
    return result;
}
void store(const Tensor& y, const std::vector<double>& from) {
    std::size_t next = 0;
    for_each_offset(y.shape(), y.strides(), [&](std::int64_t i) { put(y, i, from[next++]); });
}

void fill(In, const kernels::Fill& at, Out out) {
    store(out[0], std::vector<double>(std::size_t(out[0].numel()), at.value.to<double>()));
}

void cast(In in, const kernels::Cast&, Out out) { store(out[0], values(in[0], out[0].shape())); }

void copy_into(In in, const kernels::CopyInto&, Out out) { store(out[0], values(in[0], out[0].shape())); }

void add(In in, const kernels::add&, Out out) {
    std::vector<double> sum = values(in[0], out[0].shape());
    const std::vector<double> other = values(in[1], out[0].shape());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
    store(out[0], sum);
}

void matmul(In in, const kernels::MatMul& at, Out out) {
    const Tensor &a = in[0], &b = in[1], &y = out[0];
    const auto m = std::size_t(a.size(-2)), k = std::size_t(a.size(-1)), n = std::size_t(b.size(-1));
    const std::vector<double> left = values(a, a.shape()), right = values(b, b.shape());
    std::vector<double> result(std::size_t(y.numel()), 0.0);
    if (at.beta != 0) result = values(y, y.shape());
    for (double& v : result) v *= at.beta;
    for (std::size_t i = 0; i < result.size(); ++i) {
        const std::size_t batch = i / (m * n), row = i / n % m, column = i % n;
        for (std::size_t p = 0; p < k; ++p)
            result[i] += left[(batch * m + row) * k + p] * right[(batch * k + p) * n + column];
    }
    store(y, result);
}

const Backend memory{.device_count = device_count,
                     .hardware_name = hardware_name,
                     .allocate = allocate,
                     .release = release,
                     .copy_in = copy,
                     .copy_out = copy,
                     .copy = copy,
                     .synchronize = synchronize};
const KernelList list = kernel_list<fill, cast, copy_into, add, matmul>;

}  // namespace

Device third_backend() {
    static const BackendParts parts{&memory, lists_of<list>};
    static const bool registered = (register_backend(DeviceType::custom, parts), true);
    return static_cast<void>(registered), Device(DeviceType::custom);
}

}  // namespace mezzo::test
