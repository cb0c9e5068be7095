// Prints mezzo's view of this machine: version, build options, devices, instruction set, cache folder, which
// kernels multiply matrices on the CPU, by measurement, which fast paths have passed their self-check on a
// device, and a self-test.
#include <fmt/format.h>
#include <mezzo/distributed/group.h>
#include <mezzo/mezzo.h>

#include <optional>

#include "core/backend.h"
#include "core/system/user_cache.h"
#include "cpu/amx/amx.h"
#include "cpu/gemm/choice.h"
#include "cpu/isa/cpu_name.h"
#include "cpu/isa/isa.h"
#include "distributed/gloo_library.h"
#include "kernels/self_check.h"
#include "samples/program.h"
#include "self_test.h"

namespace mz = mezzo;

namespace {

const char* tiles() {
    if (!mz::cpu::has_tiles()) return "no";
    return mz::cpu::request_tiles() ? "yes"
                                    : "yes, but the operating system does not grant them to this process";
}

// Options of the build.
#ifdef MEZZO_HAVE_PNG
constexpr const char* png = "PNG";
#else
constexpr const char* png = "no PNG";
#endif
#ifdef MEZZO_HAVE_JPEG
constexpr const char* jpeg = "JPEG";
#else
constexpr const char* jpeg = "no JPEG";
#endif
#ifdef NDEBUG
constexpr const char* assertions = "off";
#else
constexpr const char* assertions = "on";
#endif
#ifdef __clang__
constexpr const char* compiler = __VERSION__;
#else
constexpr const char* compiler = "g++ " __VERSION__;
#endif

void print_build() {
    const std::string no_gloo = mz::distributed::gloo_absence();
    fmt::print("compiler         {}, assertions {}\n", compiler, assertions);
    fmt::print("backends         CPU{}\n", mz::backend(mz::DeviceType::cuda) == nullptr ? "" : ", CUDA");
    fmt::print("image files      {}, {}\n", png, jpeg);
    fmt::print("processes        {}\n", no_gloo.empty() ? "Gloo" : "one (" + no_gloo + ")");
}

// Returns why there is no CUDA device, or why some GPUs are left out; "" if all are used.
std::string cuda_absence() {
    const mz::Backend* cuda = mz::backend(mz::DeviceType::cuda);
    if (cuda == nullptr) return "this build has no CUDA";
    return cuda->device_absence();
}

void print_machine() {
    const std::string cache = mz::user_cache_folder();
    fmt::print("mezzo {}\n", mz::version());
    print_build();
    fmt::print("processor        {}\n", mz::cpu::cpu_name());
    fmt::print("threads          {}\n", mz::num_threads());
    fmt::print("instruction set  {}{}\n", mz::cpu::name(mz::cpu::active_isa()),
               mz::cpu::isa_is_forced() ? " (forced)" : "");
    fmt::print("AMX tiles        {}\n", tiles());
    fmt::print("cache folder     {}\n", cache.empty() ? "none" : cache);
    for (int i = 0; i < mz::cuda_device_count(); ++i)
        fmt::print("cuda:{}           {}\n", i, mz::hardware_name({mz::DeviceType::cuda, i}));
    const std::string absence = cuda_absence();
    if (mz::cuda_device_count() == 0)
        fmt::print("CUDA devices     none ({})\n", absence);
    else if (!absence.empty())
        fmt::print("GPUs left out    {}\n", absence);
}

void print_choices(bool measure) {
    if (mz::cpu::isa_is_forced()) return;
    if (measure) mz::cpu::measure_gemm_choices();
    const auto results = mz::cpu::gemm_choices();
    if (results.empty()) return;
    fmt::print("\nKernels of matrix products; microseconds on one thread\n");
    for (const auto& v : results) fmt::print("{:32}  {:8}  {}\n", v.what, v.chosen, v.times);
}

// Prints the cached results of the self-checks of a device's fast paths.
void print_check_results(mz::Device device, bool run) {
    if (run) mz::run_self_checks(device);
    const std::vector<mz::ListedCheckResult> results = mz::check_results_of(device);
    if (results.empty()) return;
    fmt::print("\nFast paths of {}\n", mz::hardware_name(device));
    for (const mz::ListedCheckResult& v : results)
        fmt::print("{:44}  {}\n", mz::text_of(v.self_check), mz::text_of(v.result));
}

// Prints whether every device computes correct results, and returns it.
bool print_self_test() {
    std::vector<mz::Device> devices{mz::cpu_device};
    for (int i = 0; i < mz::cuda_device_count(); ++i) devices.emplace_back(mz::DeviceType::cuda, i);
    bool good = true;
    for (const mz::Device device : devices) {
        fmt::print("\nSelf-test of {}\n", mz::hardware_name(device));
        for (const SelfTestLine& line : self_test(device)) {
            fmt::print("{:20}  {:6}  {}\n", line.what, line.good ? "ok" : "FAILED", line.found);
            good = good && line.good;
        }
    }
    return good;
}

int parse_and_run(int argc, char** argv) {
    bool measure = false, self_check = false, test = false;
    std::string device;
    CLI::App app{"Prints what mezzo found on this machine."};
    app.add_flag("--measure", measure,
                 "time matrix products of every class of sizes now, and keep the results");
    auto* const named = app.add_option("--device", device,
                                       "cuda or cuda:N: print the results of its self-checks of fast paths");
    app.add_flag("--self-check", self_check, "run all of them now, and store the results")->needs(named);
    app.add_flag("--self-test", test,
                 "compute small problems on every device; exit code 1 if a result is wrong");
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    const std::optional<mz::Device> chosen =
        device.empty() ? std::nullopt : std::optional(mz::parse_device(device.c_str()));
    print_machine();
    print_choices(measure);
    if (chosen) print_check_results(*chosen, self_check);
    return test && !print_self_test() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("mezzo-info", [&] { return parse_and_run(argc, argv); });
}
