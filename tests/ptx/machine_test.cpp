// The machine computes small kernels, and finds what is wrong in others. It understands every kernel of the
// library.
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>

#include "core/tensor_impl.h"
#include "mezzo/ops.h"
#include "tests/ptx/device_memory.h"
#include "tests/ptx/exact_allocations.h"
#include "tests/ptx/runtime.h"

namespace {

using namespace mezzo;

// Collects reports, which then do not make the program fail.
class Reports {
public:
    Reports()
        : before_(ptx::totals.reports),
          sink_(ptx::set_report_sink([this](const std::string& text) { text_ += text; })) {}
    ~Reports() {
        ptx::set_report_sink(sink_);
        ptx::totals.reports = before_;
    }
    Reports(const Reports&) = delete;
    Reports& operator=(const Reports&) = delete;
    const std::string& text() const { return text_; }

private:
    std::string text_;
    std::uint64_t before_;
    ptx::ReportSink sink_;
};

// Words of device memory.
class Words {
public:
    Words() : words_(static_cast<std::uint32_t*>(ptx::allocate(512))) {
        ptx::mark_written(words_, 512);
        for (std::uint32_t k = 0; k < 128; ++k) words_[k] = 1000 + k;
    }
    ~Words() { ptx::release(words_); }
    Words(const Words&) = delete;
    Words& operator=(const Words&) = delete;
    std::uint32_t& operator[](std::size_t k) { return words_[k]; }
    void* get() { return words_; }

private:
    std::uint32_t* words_;
};

// %r1 is the thread, %rd3 the address of its word in device memory, %r4 that of its word in shared memory.
const std::string head = R"(
    .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<20>; .reg .f32 %f<20>; .reg .b64 %rd<20>;
    .shared .align 16 .b8 s[512];
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    shl.b32 %r2, %r1, 2;
    mov.u32 %r3, s;
    add.s32 %r4, %r3, %r2;
)";

// Runs one block and gives what was reported.
std::string run(const std::string& body, unsigned threads, Words& words) {
    static auto& modules =
        *new std::vector<std::unique_ptr<ptx::Module>>;  // reports remember kernels by address
    modules.push_back(std::make_unique<ptx::Module>(
        ".version 9.0\n.target sm_80\n.address_size 64\n.visible .entry k(\n.param .u64 p\n)\n{\n" + head +
        body + "ret;\n}\n"));
    std::vector<char> parameters(8);
    void* const address = words.get();
    std::memcpy(parameters.data(), &address, 8);
    const Reports reports;
    try {
        ptx::run(modules.back()->kernel("k"), {}, {threads, 1, 1}, 0, parameters);
    } catch (const ptx::Fault& fault) {
        if (reports.text().empty()) return fault.what();
    }
    return reports.text();
}

bool finds(const std::string& what, const std::string& body, unsigned threads) {
    Words words;
    const std::string text = run(body, threads, words);
    INFO(text);
    CHECK_THAT(text, Catch::Contains(what));
    return text.find(what) != std::string::npos;
}

// The address of the word of thread ^ 32 (another warp's) or ^ 1 (the same warp's).
const std::string of_other_warp = "xor.b32 %r5, %r2, 128;\nadd.s32 %r6, %r3, %r5;\n";
const std::string of_neighbour = "xor.b32 %r5, %r2, 4;\nadd.s32 %r6, %r3, %r5;\n";
// 16 bytes per thread into shared memory at %r6.
const std::string copy = R"(
    mul.wide.u32 %rd4, %r1, 16; add.s64 %rd5, %rd1, %rd4;
    shl.b32 %r5, %r1, 4; add.s32 %r6, %r3, %r5; mov.u32 %r9, 16;
    cp.async.cg.shared.global [%r6], [%rd5], 16, %r9; cp.async.commit_group;
)";

}  // namespace

TEST_CASE("ptx: stores, loads and vectors reach what is allocated") {
    Words words;
    CHECK(run("st.global.u32 [%rd3], %r1;\n", 128, words).empty());
    CHECK(words[127] == 127);
    finds("in no allocation", "st.global.u32 [%rd3+4], %r1;\n", 128);
    finds("misaligned global address, 16 bytes", "ld.global.v4.u32 {%r5,%r6,%r7,%r8}, [%rd3];\n", 32);
    finds("misaligned shared address", "ld.shared.u32 %r5, [%r4+2];\n", 32);
    finds("outside a shared variable", "st.shared.u32 [%r4+512], %r1;\n", 32);
    finds("read of shared memory that nothing has written", "ld.shared.u32 %r7, [%r4];\n", 32);
    finds("division by zero", "div.u32 %r5, %r4, %r1;\n", 32);
    finds("fault: trap", "trap;\n", 32);
    finds("unknown instruction", "add.sat.s32 %r5, %r1, 1;\n", 32);
}

TEST_CASE("ptx: device memory that nothing has written is not read") {
    void* const memory = ptx::allocate(64);
    const Reports reports;
    ptx::Module module(
        ".visible .entry k(\n.param .u64 p\n)\n{\n.reg .b64 %rd<3>; .reg .b32 %r<3>;\nld.param.u64 %rd1, "
        "[p];\n"
        "ld.global.u32 %r1, [%rd1+8];\nret;\n}\n");
    std::vector<char> parameters(8);
    std::memcpy(parameters.data(), &memory, 8);
    ptx::run(module.kernel("k"), {}, {1, 1, 1}, 0, parameters);
    CHECK_THAT(reports.text(),
               Catch::Contains("read of device memory that nothing has written: byte 8 of 64"));
    CHECK(ptx::release(memory));
}

TEST_CASE("ptx: with exact allocations a tensor is an allocation of its own size") {
    const void* memory = nullptr;
    {
        const ptx::ExactAllocations exact;
        const Tensor x = empty({3}, {.dtype = float32, .device = Device(DeviceType::cuda)});
        memory = raw(x);
        CHECK(ptx::is_device_memory(memory, 12));
        CHECK_FALSE(ptx::is_device_memory(memory, 13));
    }
    CHECK_FALSE(ptx::is_device_memory(memory, 1));
}

TEST_CASE("ptx: lanes that part meet again") {
    Words words;
    // each lane adds up the numbers below its own, and leaves the loop when it has
    CHECK(run(R"(
        mov.u32 %r5, 0; mov.u32 %r6, 0;
        $L: setp.ge.u32 %p1, %r5, %r1;
        @%p1 bra $E;
        add.s32 %r6, %r6, %r5; add.s32 %r5, %r5, 1;
        bra.uni $L;
        $E: shfl.sync.bfly.b32 %r7|%p2, %r6, 1, 31, -1;
        st.global.u32 [%rd3], %r7;
    )",
              64, words)
              .empty());
    CHECK(words[4] == 10);
    CHECK(words[5] == 6);
    CHECK(words[63] == 62 * 61 / 2);
}

TEST_CASE("ptx: every lane and every warp comes to the calls that need it") {
    const std::string skip = "setp.lt.u32 %p1, %r1, 7;\n@%p1 bra $E;\n", end = "$E: mov.u32 %r8, 0;\n";
    finds("a warp call waits for lanes that have returned",
          "setp.lt.u32 %p1, %r1, 7;\n@%p1 ret;\nshfl.sync.bfly.b32 %r7|%p2, %r1, 1, 31, -1;\n", 32);
    finds("fault", skip + "shfl.sync.bfly.b32 %r7|%p2, %r1, 1, 31, -1;\n" + end, 32);
    finds("shuffle reads lane",
          skip + "mov.u32 %r9, -128;\nshfl.sync.bfly.b32 %r7|%p2, %r1, 7, 31, %r9;\n" + end, 32);
    finds("lanes name different masks",
          "setp.lt.u32 %p1, %r1, 16;\nselp.b32 %r9, -1, -65536, %p1;\nshfl.sync.bfly.b32 %r7|%p2, %r1, 1, "
          "31, %r9;\n",
          32);
    finds("a lane is not in its own mask", "shfl.sync.bfly.b32 %r7|%p2, %r1, 1, 31, -2;\n", 32);
    finds("bar.sync", skip + "bar.sync 0;\n" + end, 32);
    finds("bar.sync after some threads have returned",
          "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra $E;\nbar.sync 0;\n" + end, 64);
    finds("warps wait at different barriers",
          "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra $E;\nbar.sync 0;\nbra.uni $F;\n$E: bar.sync 0;\n$F: mov.u32 "
          "%r8, 0;\n",
          64);
}

TEST_CASE("ptx: accesses to shared memory are ordered by barriers") {
    Words words;
    CHECK(run(of_other_warp + "st.shared.u32 [%r4], %r1;\nbar.sync 0;\nld.shared.u32 %r7, "
                              "[%r6];\nst.global.u32 [%rd3], %r7;\n",
              64, words)
              .empty());
    CHECK(words[0] == 32);
    CHECK(words[40] == 8);
    CHECK(run(of_neighbour + "st.shared.u32 [%r4], %r1;\nbar.warp.sync -1;\nld.shared.u32 %r7, [%r6];\n", 32,
              words)
              .empty());
    finds("race", of_other_warp + "st.shared.u32 [%r4], %r1;\nld.shared.u32 %r7, [%r6];\n", 64);
    finds(
        "race: write after read",
        of_other_warp +
            "st.shared.u32 [%r4], %r1;\nbar.sync 0;\nld.shared.u32 %r7, [%r6];\nst.shared.u32 [%r4], %r7;\n",
        64);
    finds("race: read after write", of_neighbour + "st.shared.u32 [%r4], %r1;\nld.shared.u32 %r7, [%r6];\n",
          32);
    finds("race: two writes", "st.shared.u32 [%r3], %r1;\n", 64);
}

TEST_CASE("ptx: a cp.async arrives in the wait that covers it") {
    Words words;
    CHECK(run(copy + R"(
        cp.async.wait_group 0;
        ld.shared.v4.u32 {%r10,%r11,%r12,%r13}, [%r6];
        add.s32 %r10, %r10, %r13;
        st.global.u32 [%rd3], %r10;
    )",
              32, words)
              .empty());
    CHECK(words[3] == 1012 + 1015);
    finds("read of shared memory that nothing has written",
          copy + "ld.shared.u32 %r10, [%r6];\ncp.async.wait_group 0;\n", 32);
    finds("returns without waiting", copy, 32);
    finds("race", copy + "cp.async.wait_group 0;\nxor.b32 %r7, %r6, 16;\nld.shared.u32 %r10, [%r7];\n", 32);
    finds("misaligned source",
          "add.s64 %rd5, %rd1, 4;\nmov.u32 %r9, 16;\ncp.async.cg.shared.global [%r3], [%rd5], 16, "
          "%r9;\ncp.async.wait_group 0;\n",
          1);
}

TEST_CASE("ptx: float to integer is clamped, and NaN is 0") {
    Words words;
    words[0] = 0x7FC00000, words[1] = 0xFF800000, words[2] = 0x4F800000,
    words[3] = 0xC0200000;  // NaN, -inf, 2^32, -2.5
    CHECK(run(R"(
        ld.global.f32 %f1, [%rd3];
        cvt.rzi.s32.f32 %r5, %f1; cvt.rzi.u32.f32 %r6, %f1;
        st.global.u32 [%rd3], %r5; st.global.u32 [%rd3+128], %r6;
    )",
              4, words)
              .empty());
    const std::vector<std::uint32_t> expected_signed = {0, 0x80000000, 0x7FFFFFFF, std::uint32_t(-2)};
    const std::vector<std::uint32_t> expected_unsigned = {0, 0, ~0u, 0};
    for (std::size_t k = 0; k < 4; ++k) {
        CHECK(words[k] == expected_signed[k]);
        CHECK(words[32 + k] == expected_unsigned[k]);
    }
}

TEST_CASE("ptx: a kernel that does not end is a fault") {
    const ptx::Options before = ptx::options;
    ptx::options.instruction_limit = 1000000;
    finds("does not end", "$L: bra.uni $L;\n", 64);
    ptx::options = before;
}

TEST_CASE("ptx: every kernel of the library is understood") {
    std::size_t kernels = 0, instructions = 0;
    for (ptx::FatBinary* const binary : ptx::fat_binaries())
        for (const std::string& name : binary->get()->names()) {
            INFO(name);
            ++kernels;
            CHECK_NOTHROW(instructions += binary->get()->kernel(name).code.size());
        }
    CHECK(kernels > 800);
    CHECK(instructions > 100 * kernels);
}
