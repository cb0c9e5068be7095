// Times matrix products on demand, for tools/compare_gemm.py. Reads lines
//     m n k OP TYPE PRECISION MILLISECONDS
// with OP NN, NT, TN or TT, TYPE float32, bfloat16 or float16 and PRECISION highest, high or medium (of
// float32 products), and answers each with the seconds of a call: median and fastest. Four sets of operands
// are used in turn, so that they come from the L3 cache or from memory, as a layer's do in training. Results
// have the dtype of the operands; those of TN, the form of weight gradients, are float32.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/buffer.h"
#include "cpu/elementwise/convert.h"
#include "cpu/gemm/gemm.h"
#include "cpu/parallel.h"
#include "mezzo/matmul_precision.h"
#include "samples/program.h"

using namespace mezzo;

namespace {

constexpr std::size_t sets = 4;

struct Request {
    std::int64_t m = 0, n = 0, k = 0;
    std::string op, type, precision;
    double milliseconds = 0;
};

Request parse(const std::string& line) {
    Request r;
    std::istringstream in(line);
    in >> r.m >> r.n >> r.k >> r.op >> r.type >> r.precision >> r.milliseconds;
    const auto one_of = [](const std::string& word, std::initializer_list<const char*> words) {
        return std::find(words.begin(), words.end(), word) != words.end();
    };
    const bool understood = in && r.m > 0 && r.n > 0 && r.k > 0 && one_of(r.op, {"NN", "NT", "TN", "TT"}) &&
                            one_of(r.type, {"float32", "bfloat16", "float16"}) &&
                            one_of(r.precision, {"highest", "high", "medium"});
    if (!understood) throw std::runtime_error("not understood: " + line);
    return r;
}

class Operands {
public:
    explicit Operands(const Request& r) {
        const Dtype type = r.type == "float32" ? float32 : r.type == "bfloat16" ? bfloat16 : float16;
        g.m = r.m, g.n = r.n, g.k = r.k;
        g.trans_a = r.op[0] == 'T', g.trans_b = r.op[1] == 'T';
        g.a = fill(a_, type, r.m * r.k), g.b = fill(b_, type, r.k * r.n);
        g.a_type = g.b_type = type;
        g.c_type = r.op == "TN" ? float32 : type;
        g.c = c_.get<float>(r.m * r.n);
        std::memset(g.c, 0, static_cast<std::size_t>(r.m * r.n) * sizeof(float));
        g.lda = g.trans_a ? r.m : r.k, g.ldb = g.trans_b ? r.k : r.n, g.ldc = r.n;
    }
    cpu::Gemm g;

private:
    static void* fill(cpu::Buffer& to, Dtype type, std::int64_t count) {
        std::vector<float> values(static_cast<std::size_t>(count));
        std::uint32_t seed = 1;
        for (float& v : values) {
            seed = seed * 1664525u + 1013904223u;
            v = float(std::int32_t(seed)) * 0x1p-31f;
        }
        void* const elements = to.get<float>(count);
        if (type == float32)
            std::copy(values.begin(), values.end(), static_cast<float*>(elements));
        else
            cpu::convert(values.data(), float32, elements, type, count);
        return elements;
    }

    cpu::Buffer a_, b_, c_;
};

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void answer(const Request& r, const std::vector<std::unique_ptr<Operands>>& operands) {
    set_float32_matmul_precision(r.precision == "high"     ? Float32MatmulPrecision::high
                                 : r.precision == "medium" ? Float32MatmulPrecision::medium
                                                           : Float32MatmulPrecision::highest);
    std::vector<double> times;
    cpu::gemm(operands[0]->g);  // wakes the threads
    for (const double end = now() + r.milliseconds / 1e3; now() < end || times.size() < 3;) {
        const double start = now();
        cpu::gemm(operands[times.size() % sets]->g);
        times.push_back(now() - start);
    }
    std::sort(times.begin(), times.end());
    std::printf("%.9f %.9f\n", times[times.size() / 2], times[0]);
    std::fflush(stdout);
}

void serve() {
    std::vector<std::unique_ptr<Operands>> operands;
    std::string line, before;
    while (std::getline(std::cin, line)) {
        const Request r = parse(line);
        const std::string what = line.substr(0, line.find(r.precision));
        if (what != before) {
            operands.clear();
            for (std::size_t i = 0; i < sets; ++i) operands.push_back(std::make_unique<Operands>(r));
            for (const auto& set : operands) cpu::gemm(set->g);
            before = what;
        }
        answer(r, operands);
    }
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("time_gemm", [&] {
        int threads = 1;
        CLI::App app{"Times the matrix products that standard input asks for."};
        app.option_defaults()->always_capture_default();
        app.add_option("threads", threads, "CPU threads")->transform(program::thread_count());
        if (const int code = program::parse(app, argc, argv); code >= 0) return code;
        cpu::set_num_threads(threads);
        serve();
        return 0;
    });
}
