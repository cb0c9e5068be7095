// What a program takes from the heap: counted, and limited to see what it does without. Whoever links heap.cpp has operator
// new replaced in the whole program.
#pragma once

// Calls of operator new by this thread so far.
long heap_allocations();

// In its scope so many allocations of this thread succeed.
class HeapLimit {
public:
    explicit HeapLimit(long allocations);
    ~HeapLimit();
    HeapLimit(const HeapLimit&) = delete;
    HeapLimit& operator=(const HeapLimit&) = delete;
};
