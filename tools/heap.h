// Counts and limits heap allocations, to test programs without memory. Linking heap.cpp replaces operator new
// in the whole program.
#pragma once

// Returns the number of calls of operator new by this thread so far.
long heap_allocations();

// In its scope, so many allocations of this thread succeed; later ones fail.
class HeapLimit {
public:
    explicit HeapLimit(long allocations);
    ~HeapLimit();
    HeapLimit(const HeapLimit&) = delete;
    HeapLimit& operator=(const HeapLimit&) = delete;
};
