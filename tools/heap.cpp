#include "tools/heap.h"

#include <cstdlib>
#include <new>

namespace {
thread_local long count = 0;
thread_local long allowed = -1;  // how many allocations may still succeed; below 0: any number
}  // namespace

long heap_allocations() { return count; }

HeapLimit::HeapLimit(long allocations) { allowed = allocations; }
HeapLimit::~HeapLimit() { allowed = -1; }

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    if (allowed == 0) return nullptr;
    if (allowed > 0) --allowed;
    ++count;
    return std::malloc(bytes != 0 ? bytes : 1);
}
void* operator new(std::size_t bytes) {
    if (void* memory = operator new(bytes, std::nothrow)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
