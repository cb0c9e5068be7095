#include "cpu/gemm/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "core/system/build_id.h"
#include "core/system/log_line.h"
#include "cpu/amx/tile_gemm.h"
#include "cpu/buffer.h"
#include "cpu/elementwise/convert.h"
#include "cpu/isa/cpu_name.h"
#include "cpu/parallel.h"
#include "kernels/choice_file.h"
#include "mezzo/matmul_precision.h"
#include "mezzo/version.h"

namespace mezzo::cpu {
namespace {

enum class Path : std::uint8_t { unknown, vectors, pairs, tiles };
constexpr Path paths[] = {Path::vectors, Path::pairs, Path::tiles};
constexpr const char* path_names[] = {"?", "vectors", "pairs", "tiles"};

// ---- classes

enum class OperandType : std::uint8_t { bf16, f16, f32_high, f32_medium };
constexpr int kinds = 4, forms = 4, buckets = 3;
constexpr const char* kind_names[kinds] = {"bfloat16", "float16", "float32 high", "float32 medium"};
constexpr const char* form_names[forms] = {"NN", "TN", "NT", "TT"};
constexpr Dtype kind_types[kinds] = {bfloat16, float16, float32, float32};
// The sizes that are timed for a class, which are its largest; the last class has everything above, too.
constexpr std::int64_t extents[buckets] = {16, 64, 256}, depths[buckets] = {32, 128, 512};
constexpr int classes = kinds * forms * buckets * buckets * buckets;

struct Class {
    OperandType kind;
    int form, m, n, k;

    int index() const { return (((int(kind) * forms + form) * buckets + m) * buckets + n) * buckets + k; }
    static Class at(int index) {
        Class c{};
        c.k = index % buckets, index /= buckets;
        c.n = index % buckets, index /= buckets;
        c.m = index % buckets, index /= buckets;
        c.form = index % forms, index /= forms;
        c.kind = OperandType(index);
        return c;
    }
    std::string text() const {
        return fmt::format("{} {} {} x {} x {}", kind_names[int(kind)], form_names[form], extents[m],
                           extents[n], depths[k]);
    }
};

int bucket(std::int64_t size, const std::int64_t (&upto)[buckets]) {
    return size <= upto[0] ? 0 : size <= upto[1] ? 1 : 2;
}

// Type of the operands; none if only vectors can multiply them.
std::optional<OperandType> kind_of(const Gemm& g) {
    if (g.a_type != g.b_type) return {};
    if (g.a_type == bfloat16) return OperandType::bf16;
    if (g.a_type == float16) return OperandType::f16;
    const Float32MatmulPrecision precision = float32_matmul_precision();
    if (g.a_type != float32 || precision == Float32MatmulPrecision::highest) return {};
    return precision == Float32MatmulPrecision::high ? OperandType::f32_high : OperandType::f32_medium;
}

// ---- paths

const GemmKernels& kernels_of(Path path) {
    return gemm_kernels(path == Path::tiles   ? Isa::amx
                        : path == Path::pairs ? Isa::avx512_bf16
                                              : Isa::avx512);
}

bool available(Path path, OperandType kind) {
    const Isa best = best_isa();
    if (path == Path::vectors) return true;
    if (path == Path::pairs)
        return kind == OperandType::bf16 && best >= Isa::avx512_bf16 && kernels_of(path).depth == 2;
    return best >= Isa::amx && kernels_of(path).tiles != nullptr;
}

// Random operands of a product, and room for its result.
class Trial {
public:
    Trial(OperandType kind, int form, std::int64_t m, std::int64_t n, std::int64_t k) {
        const Dtype type = kind_types[int(kind)];
        g.m = m, g.n = n, g.k = k;
        g.trans_a = form & 1, g.trans_b = form & 2;
        g.a = fill(a_, type, m * k, 1), g.b = fill(b_, type, k * n, 2);
        g.a_type = g.b_type = g.c_type = type;
        g.lda = g.trans_a ? m : k, g.ldb = g.trans_b ? k : n, g.ldc = n;
        g.c = c_.get<float>(m * n);
    }
    Gemm g;

private:
    // Between -1 and 1, with as many significant bits as the type has.
    const void* fill(Buffer& to, Dtype type, std::int64_t count, std::uint32_t seed) {
        float* const values = (type == float32 ? to : values_).get<float>(count);
        for (std::int64_t i = 0; i < count; ++i) {
            seed = seed * 1664525u + 1013904223u;
            values[i] = float(std::int32_t(seed)) * 0x1p-31f;
        }
        if (type == float32) return values;
        void* const bits = to.get<std::uint16_t>(count);
        convert(values, float32, bits, type, count);
        return bits;
    }

    Buffer values_, a_, b_, c_;
};

void multiply(const Gemm& g, OperandType kind, Path path) {
    const GemmKernels& kernels = kernels_of(path);
    if (path != Path::tiles) return gemm_without_tiles(g, kernels);
    constexpr TileProduct TileKernels::*products[kinds] = {&TileKernels::bf16, &TileKernels::f16,
                                                           &TileKernels::f32_six, &TileKernels::f32_three};
    gemm_on_tiles(kernels.tiles->*products[int(kind)], g, kernels);
}

// Compares a path with vectors on sizes that are no multiple of any tile. Leaving out a plane of the
// operands, or a step of k, makes a difference ten times as large as the tolerance.
CheckResult compare(Path path, OperandType kind) {
    constexpr std::int64_t m = 45, n = 71, k = 107;
    constexpr float tolerance = 0x1p-18f * k;
    for (int form = 0; form < forms; ++form) {
        Trial trial(kind, form, m, n, k);
        Buffer other;
        trial.g.c_type = float32;
        multiply(trial.g, kind, Path::vectors);
        const auto* const want = static_cast<const float*>(trial.g.c);
        float* const got = other.get<float>(m * n);
        std::fill(got, got + m * n, std::numeric_limits<float>::quiet_NaN());
        trial.g.c = got;
        multiply(trial.g, kind, path);
        for (std::int64_t i = 0; i < m * n; ++i)
            if (!(std::fabs(got[i] - want[i]) <= tolerance))
                return {CheckResult::bad,
                        fmt::format("{}: element {} is {}, not {}", form_names[form], i, got[i], want[i])};
    }
    return {CheckResult::good};
}

// ---- times

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double time_of(const Gemm& g, OperandType kind, Path path, int calls) {
    const double start = seconds();
    for (int i = 0; i < calls; ++i) multiply(g, kind, path);
    return (seconds() - start) / calls;
}

constexpr double no_time = std::numeric_limits<double>::infinity();

struct Times {
    double of[4] = {no_time, no_time, no_time, no_time};  // by Path

    Path fastest() const {
        constexpr double draw = 0.95;  // others must be 5% faster, so that noise decides little
        Path best = Path::vectors;
        double least = draw * of[int(Path::vectors)];
        for (const Path path : {Path::pairs, Path::tiles})
            if (of[int(path)] < least) best = path, least = of[int(path)];
        return best;
    }
    std::string text() const {
        std::string all;
        for (const Path path : paths) {
            if (of[int(path)] == no_time) continue;
            all += fmt::format("{}{} {:.2f}", all.empty() ? "" : ", ", path_names[int(path)],
                               1e6 * of[int(path)]);
        }
        return all;
    }
};

// Times the paths in several rounds, in which they take turns; the shortest time is that of an undisturbed
// call.
Times measure(const Class& c, const bool (&usable)[4]) {
    constexpr double round = 3e-5;
    constexpr int rounds = 5;
    constexpr double most_calls = 100;
    Trial trial(c.kind, c.form, extents[c.m], extents[c.n], depths[c.k]);
    Times times;
    for (int r = 0; r < rounds; ++r)
        for (const Path path : paths) {
            double& best = times.of[int(path)];
            const bool beaten = r > 0 && best > 3 * times.of[int(times.fastest())];
            if (!usable[int(path)] || beaten) continue;
            if (r == 0) time_of(trial.g, c.kind, path, 1);  // warms the cache, allocates scratch memory
            const int calls = r == 0 ? 1 : int(std::clamp(round / best, 1.0, most_calls));
            best = std::min(best, time_of(trial.g, c.kind, path, calls));
        }
    return times;
}

// Runs f, whose products stay on one thread, on a new thread, so that the scratch memory of kernels that are
// not chosen is freed with it. If the system cannot start one, runs f on the calling thread.
template <class F> void aside(const F& f) {
    std::exception_ptr error;
    const auto guarded = [&] {
        const SerialScope one_thread;
        try {
            f();
        } catch (...) {
            error = std::current_exception();
        }
    };
    std::thread thread;
    try {
        thread = std::thread(guarded);
    } catch (const std::system_error&) {
        guarded();
    }
    if (thread.joinable()) thread.join();
    if (error) std::rethrow_exception(error);
}

// ---- cached results

class ChoiceTable {
public:
    static ChoiceTable& instance() {
        static ChoiceTable& results = *new ChoiceTable;  // never destroyed: threads may multiply during exit
        return results;
    }

    Path of(const Class& c) {
        const Path known = chosen_[std::size_t(c.index())].load(std::memory_order_acquire);
        return known != Path::unknown ? known : decide(c);
    }

    void measure_all() {
        {
            const std::lock_guard lock(mutex_);
            loaded_ = again_ = true;  // the file is not read: everything is checked and timed again
            for (std::atomic<Path>& chosen : chosen_) chosen.store(Path::unknown, std::memory_order_release);
            for (auto& of_path : checked_) std::fill(std::begin(of_path), std::end(of_path), CheckResult());
        }
        for (int i = 0; i < classes; ++i)
            if (has_choice(Class::at(i).kind)) of(Class::at(i));
    }

    std::vector<GemmChoice> list() {
        const std::lock_guard lock(mutex_);
        aside([&] { load(); });
        std::vector<GemmChoice> list;
        for (int i = 0; i < classes; ++i) {
            const Path path = chosen_[std::size_t(i)].load(std::memory_order_relaxed);
            if (path != Path::unknown && has_choice(Class::at(i).kind))
                list.push_back({Class::at(i).text(), path_names[int(path)], times_[std::size_t(i)]});
        }
        return list;
    }

    static bool has_choice(OperandType kind) {
        return available(Path::pairs, kind) || available(Path::tiles, kind);
    }

private:
    Path decide(const Class& c) {
        std::atomic<Path>& chosen = chosen_[std::size_t(c.index())];
        std::string message;
        {
            const std::lock_guard lock(mutex_);
            aside([&] {
                load();
                if (chosen.load(std::memory_order_relaxed) == Path::unknown) judge(c, chosen);
            });
            message = std::exchange(message_, {});
        }
        if (!message.empty()) log_line(message);
        return chosen;
    }

    void judge(const Class& c, std::atomic<Path>& chosen) {
        if (!has_choice(c.kind)) return chosen.store(Path::vectors, std::memory_order_release);
        bool usable[4] = {};
        for (const Path path : paths) usable[int(path)] = passes(path, c.kind);
        const Times times = measure(c, usable);
        std::string& text = times_[std::size_t(c.index())];
        text = times.text();
        for (const Path path : paths)
            if (available(path, c.kind) && !usable[int(path)])
                text +=
                    fmt::format(", {} {}", path_names[int(path)], text_of(checked_[int(path)][int(c.kind)]));
        chosen.store(times.fastest(), std::memory_order_release);
        file().save(c.text(), std::string(path_names[int(times.fastest())]) + "; " + text);
    }

    // Whether a path may be used. It is compared with vectors once per build and processor.
    bool passes(Path path, OperandType kind) {
        if (!available(path, kind)) return false;
        if (path == Path::vectors) return true;
        CheckResult& result = checked_[int(path)][int(kind)];
        if (result.state == CheckResult::open) {
            const std::string key = fmt::format("{} {}", path_names[int(path)], kind_names[int(kind)]);
            result = file().check(key, again_, [&] { return compare(path, kind); });
            if (result.state == CheckResult::bad)
                message_ = "matrix products: " + key + ": " + text_of(result);
        }
        return result.state == CheckResult::good;
    }

    // The results hold for this build and processor.
    static ChoiceFile file() {
        return {"gemm-cpu", std::string("mezzo ") + version() + " " + build_id() + ", matrix products; " +
                                cpu_name() + ", " + name(best_isa()) +
                                (available(Path::tiles, OperandType::bf16) ? " granted" : "")};
    }

    // Choices "class: path; times". Others are ignored.
    void load() {
        if (loaded_) return;
        loaded_ = true;
        const Choices choices = file().load();
        for (int i = 0; i < classes; ++i)
            if (const auto found = choices.find(Class::at(i).text()); found != choices.end())
                take(i, found->second);
    }
    void take(int index, const std::string& choice) {
        const std::size_t semicolon = choice.find("; ");
        if (semicolon == std::string::npos) return;
        for (const Path path : paths)
            if (choice.compare(0, semicolon, path_names[int(path)]) == 0 &&
                passes(path, Class::at(index).kind)) {
                times_[std::size_t(index)] = choice.substr(semicolon + 2);
                chosen_[std::size_t(index)].store(path, std::memory_order_release);
            }
    }

    std::array<std::atomic<Path>, classes> chosen_{};
    std::mutex mutex_;  // guards what follows, and changes to chosen_
    std::array<std::string, classes> times_;
    CheckResult checked_[4][kinds];
    std::string message_;  // for the log, after mutex_ is released
    bool loaded_ = false, again_ = false;
};

}  // namespace

const GemmKernels& chosen_gemm_kernels(const Gemm& g) {
    const Isa isa = active_isa();
    if (isa < Isa::avx512_bf16 || isa_is_forced()) return gemm_kernels(isa);
    const std::optional<OperandType> kind = kind_of(g);
    if (!kind || !worth_packing(g)) return gemm_kernels(Isa::avx512);
    const Class c{*kind, int(g.trans_a) + 2 * int(g.trans_b), bucket(g.m, extents), bucket(g.n, extents),
                  bucket(g.k, depths)};
    return kernels_of(ChoiceTable::instance().of(c));
}

std::vector<GemmChoice> gemm_choices() { return ChoiceTable::instance().list(); }

void measure_gemm_choices() { ChoiceTable::instance().measure_all(); }

}  // namespace mezzo::cpu
