// Compares op kernels of the CUDA backend with the CPU's on the same values.
#pragma once

#include <catch2/catch.hpp>
#include <vector>

#include "tests/support/kernels.h"
#include "tests/support/support.h"

namespace mezzo::test {

inline const Device cuda_device{DeviceType::cuda};

// The same values on both devices.
struct Both {
    Tensor host, cuda;

    Both(const std::vector<double>& values, const Shape& shape, Dtype dtype)
        : host(tensor_of(values, shape, dtype)), cuda(tensor_of(values, shape, dtype, cuda_device)) {}
    Both(const Shape& shape, Dtype dtype, std::uint64_t seed, Domain domain = Domain::any)
        : Both(random_values(shape.numel(), seed, domain), shape, dtype) {}
    template <class F> Both view(const F& f) const {
        Both result = *this;
        result.host = f(host);
        result.cuda = f(cuda);
        return result;
    }
};

struct Result {
    Shape shape;
    Dtype dtype;
};

// An output between guard elements that no kernel may write; the margin keeps it aligned for the fast paths.
struct Guarded {
    static constexpr std::int64_t margin = 16;
    static constexpr double junk = 77;  // exact in every dtype but boolean, where it is true
    Tensor all, out;

    Guarded(const Result& r, Device where)
        : all(tensor_of(std::vector<double>(std::size_t(r.shape.numel() + 2 * margin), junk),
                        {r.shape.numel() + 2 * margin}, r.dtype, where)),
          out(all.slice(0, margin, margin + r.shape.numel()).reshape(r.shape)) {
        REQUIRE(out.is_view());
    }
    bool intact() const {
        const std::vector<double> values = doubles(all);
        const std::size_t end = values.size() - std::size_t(margin);
        for (std::size_t i = 0; i < values.size(); ++i)
            if ((i < std::size_t(margin) || i >= end) && values[i] != (all.dtype() == boolean ? 1 : junk))
                return false;
        return true;
    }
};

// Runs both kernels into fresh outputs filled with a value that no kernel writes, and compares.
template <class A> void agree(const std::vector<Both>& inputs, const A& at,
                              const std::vector<Result>& results, double slack = 1) {
    std::vector<Tensor> in_host, in_cuda, out_host, out_cuda;
    std::vector<Guarded> guarded;
    for (const Both& x : inputs) {
        in_host.push_back(x.host);
        in_cuda.push_back(x.cuda);
    }
    for (const Result& r : results) {
        out_host.push_back(Guarded(r, Device{}).out);
        guarded.emplace_back(r, cuda_device);
        out_cuda.push_back(guarded.back().out);
    }
    cpu_kernel<A>(in_host, at, out_host);
    cuda_kernel<A>(in_cuda, at, out_cuda);
    for (std::size_t i = 0; i < results.size(); ++i) {
        Tolerance allowed = tolerance(results[i].dtype);
        allowed.relative *= slack;
        allowed.absolute *= slack;
        CAPTURE(i, name(results[i].dtype));
        CHECK(difference(doubles(out_cuda[i]), doubles(out_host[i]), allowed) == "");
        CHECK(guarded[i].intact());
    }
}

}  // namespace mezzo::test
