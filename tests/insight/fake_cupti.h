// A stand-in for libcupti.so that returns the records that a test gives it.
#pragma once

#include <cstddef>
#include <cstdint>

struct FakeRecord {
    int kind;          // CUpti_ActivityKind
    const char* name;  // of a kernel
    int copy_kind;     // CUpti_ActivityMemcpyKind
    std::uint64_t begin, end;
};

struct FakeCupti {
    int refused = 0;  // what cuptiActivityEnable answers
    std::size_t records_per_buffer = 2;
    std::size_t dropped = 0;
    const FakeRecord* records = nullptr;  // handed out by the next flush
    std::size_t count = 0;
    bool graphs_as_a_whole = false;  // GRAPH_TRACE was enabled
};

// Exported by the library.
extern "C" FakeCupti* fake_cupti();
