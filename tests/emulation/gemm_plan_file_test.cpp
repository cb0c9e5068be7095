// Files of GEMM plans.
#include <catch2/catch.hpp>
#include <string>

#include "cuda/runtime/runtime.h"
#include "mezzo/error.h"
#include "tests/emulation/tuned.h"
#include "tests/support/folder.h"

namespace {

using namespace mezzo;
using cuda::lt::Epilogue;
using emulation::fake_lt;
using test::algorithm_of;
using test::Folder;
using test::Product;
using test::Tuned;

// Returns the text behind the path in the error that loading throws.
std::string complaint(const std::string& path, ErrorKind kind = ErrorKind::value) {
    try {
        cuda::load_gemm_plans(path);
    } catch (const Error& error) {
        const std::string text = error.what();
        REQUIRE(error.kind() == kind);
        REQUIRE(text.starts_with("load_gemm_plans: "));
        REQUIRE(text.find(path) != text.npos);
        return text.substr(text.find(path) + path.size());
    }
    FAIL("nothing was thrown");
    return {};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    REQUIRE(at != text.npos);
    return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("gemm plans: options are checked", "[cuda][gemm]") {
    const Tuned tuned;
    const int wrong = GENERATE(0, 65, -1);
    REQUIRE_THROWS_WITH(cuda::set_gemm_options({.candidates = wrong}),
                        Catch::StartsWith("set_gemm_options: candidates = " + std::to_string(wrong)));
    REQUIRE(cuda::gemm_options().autotune);
    REQUIRE(cuda::gemm_options().candidates == 8);
}

TEST_CASE("gemm plans: saved, loaded, checked again, used without timing", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(3, 1, 2);
    emulation::options.launch_ms = 0.5;
    fake_lt.fused_ms = 0.9;
    fake_lt.workspace = 4096;
    Product plain(70), fused;
    fused.with_bias(Activation::relu);
    plain.run();
    fused.run();
    REQUIRE(fake_lt.last_problem.epilogue == Epilogue::none);
    const Folder folder;
    const std::string path = folder.write("plans", "an older file");
    REQUIRE(cuda::save_gemm_plans(path) == 2);
    REQUIRE(folder.listing() == "plans ");
    cuda::clear_gemm_plans();
    cuda::set_gemm_options({});
    const cuda::LoadedGemmPlans report = cuda::load_gemm_plans(path);
    REQUIRE(report.loaded == 2);
    REQUIRE(report.other_device + report.other_version == 0);
    const std::string first = folder.read("plans");
    REQUIRE(cuda::save_gemm_plans(path) == 2);  // what was not used yet stays
    REQUIRE(folder.read("plans") == first);
    const int runs = fake_lt.runs;
    SECTION("good") {
        REQUIRE(algorithm_of(plain) == 1);
        REQUIRE(fake_lt.runs == runs + 2);  // one for the check
        REQUIRE(algorithm_of(plain) == 1);
        REQUIRE(fake_lt.runs == runs + 3);
        REQUIRE(algorithm_of(fused) == 1);
        REQUIRE(fake_lt.last_problem.epilogue == Epilogue::none);
        REQUIRE(fake_lt.last_operands.workspace_bytes >= 4096);
        REQUIRE(cuda::save_gemm_plans(path) == 2);
        REQUIRE(folder.read("plans") == first);
    }
    SECTION("an algorithm that has become wrong") {
        fake_lt.dropping_last = 2;
        REQUIRE(algorithm_of(plain) == 2);
        REQUIRE(cuda::save_gemm_plans(path) == 1);
    }
    SECTION("an epilogue the library does no more") {
        cuda::clear_gemm_plans();
        fake_lt.fused_ms = 0;
        cuda::set_gemm_options({.autotune = true});
        fused.run();
        REQUIRE(fake_lt.last_problem.epilogue == Epilogue::relu_bias);
        REQUIRE(cuda::save_gemm_plans(path) == 1);
        cuda::clear_gemm_plans();
        fake_lt.no_fused = true;
        cuda::load_gemm_plans(path);
        REQUIRE(algorithm_of(fused) == 1);  // timed anew
        REQUIRE(fake_lt.last_problem.epilogue == Epilogue::none);
    }
    SECTION("not while capturing") {
        emulation::options.capturing = true;
        fused.run();
        REQUIRE(fake_lt.last_problem.epilogue == Epilogue::relu_bias);
        REQUIRE(fake_lt.last_algorithm == 0);
        emulation::options.capturing = false;
        fused.run();
        REQUIRE(fake_lt.last_problem.epilogue == Epilogue::none);
    }
    SECTION("a product that is not in the file") {
        Product other(128);
        REQUIRE(algorithm_of(other) == 0);
        REQUIRE(fake_lt.runs == runs + 1);
    }
}

TEST_CASE("gemm plans: of other GPUs and library versions are left out", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(3, 1, 2);
    Product x;
    x.run();
    const Folder folder;
    const std::string path = folder.file("plans");
    REQUIRE(cuda::save_gemm_plans(path) == 1);
    cuda::clear_gemm_plans();
    cuda::set_gemm_options({});
    SECTION("GPU") {
        emulation::options.device_name = "another \"GPU\"";
        REQUIRE(cuda::load_gemm_plans(path).other_device == 1);
    }
    SECTION("version") {
        ++fake_lt.version;
        REQUIRE(cuda::load_gemm_plans(path).other_version == 1);
    }
    SECTION("no GPU") {
        emulation::options.device_count = 0;
        REQUIRE(cuda::load_gemm_plans(path).other_device == 1);
        emulation::options.device_count = 1;
    }
    REQUIRE(algorithm_of(x) == 0);
    REQUIRE(cuda::save_gemm_plans(path) == 0);
    REQUIRE(folder.read("plans").find("emulated CUDA device") != std::string::npos);  // left as it was
}

TEST_CASE("gemm plans: every GPU of a kind has them", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    emulation::options.device_count = 2;
    Tuned::times(3, 1, 2);
    Product x;
    x.run();
    cuda::set_device(1);
    x.run();
    cuda::set_device(0);
    const Folder folder;
    REQUIRE(cuda::save_gemm_plans(folder.file("plans")) == 1);
    cuda::clear_gemm_plans();
    cuda::set_gemm_options({});
    REQUIRE(cuda::load_gemm_plans(folder.file("plans")).loaded == 1);
    REQUIRE(algorithm_of(x) == 1);
    cuda::set_device(1);
    REQUIRE(algorithm_of(x) == 1);
    cuda::set_device(0);
}

TEST_CASE("gemm plans: damaged files are refused as a whole", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(3, 1, 2);
    Product x, y(70);
    x.run();
    y.run();
    const Folder folder;
    REQUIRE(cuda::save_gemm_plans(folder.file("good")) == 2);
    const std::string good = folder.read("good");
    cuda::clear_gemm_plans();
    cuda::set_gemm_options({});
    const auto refused = [&](const std::string& text, const std::string& reason) {
        CHECK_THAT(complaint(folder.write("bad", text)), Catch::Contains(reason));
    };
    refused("[]", "is an array, not an object");
    refused("{}", "has no format");
    refused(replaced(good, "plans 1", "plans 2"), "format is \"mezzo GEMM plans 2\"");
    refused(replaced(good, "\"k\": 70", "\"k\": \"70\""), "k is a string");
    refused(replaced(good, "\"k\": 70, ", ""), "has no k");
    refused(replaced(good, "\"m\": 8", "\"m\": 0"), "library 1, plan 1: m is 0; 1 to");
    refused(replaced(good, "\"align_a\": 256", "\"align_a\": 48"), "align_a is 48, no power of two");
    refused(replaced(good, "\"align_a\": 256", "\"align_a\": 512"), "align_a is 512; 1 to 256");
    refused(replaced(good, "float32", "float31"), "a is \"float31\", which is not known");
    for (const char* digits : {"000", "000g", "00000"})
        refused(replaced(good, "\"algorithm\": \"0000", std::string("\"algorithm\": \"") + digits),
                "128 hexadecimal digits are expected");
    // Valid values, so that only the checksum shows the change.
    refused(replaced(good, "\"algorithm\": \"0000", "\"algorithm\": \"0100"), "the file is damaged");
    refused(replaced(good, "\"k\": 70", "\"k\": 71"), "the file is damaged");
    complaint(folder.write("empty", ""), ErrorKind::io);
    complaint(folder.write("short", good.substr(0, good.size() - 9)), ErrorKind::io);
    complaint(folder.file("none"), ErrorKind::io);
    REQUIRE(algorithm_of(y) == 0);  // nothing was taken over
    REQUIRE(cuda::load_gemm_plans(folder.write("spaced", replaced(good, "\"k\": 70", "\"k\":  70"))).loaded ==
            2);
}

TEST_CASE("gemm plans: a file that cannot be written", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Product x;
    x.run();
    const Folder folder;
    REQUIRE_THROWS_WITH(cuda::save_gemm_plans(folder.file("no/plans")),
                        Catch::StartsWith("save_gemm_plans:"));
    REQUIRE(cuda::save_gemm_plans(folder.file("plans")) == 1);
}
