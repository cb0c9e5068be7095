// Free list of a thread: the memory of its destroyed objects, for its next ones. An op then takes no memory
// from the heap.
//
//   using Nodes = FreeList<Node, &Node::next>;  // linked through the objects
//   Node* const node = Nodes::take();           // a new node if the list is empty
//   Nodes::put(node);                           // deletes the node if the list is full
//
// The caller of put() has brought the object back to its initial state, apart from its link.
#pragma once

#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define MEZZO_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MEZZO_ASAN 1
#endif
#endif

namespace mezzo {

// Most objects in a list. None with AddressSanitizer, so that it finds uses of destroyed objects.
#ifdef MEZZO_ASAN
inline constexpr int free_list_limit = 0;
#else
inline constexpr int free_list_limit = 1024;
#endif

template <class T, T* T::*next, int limit = free_list_limit> class FreeList {
public:
    static T* take() {
        FreeList& own = of_thread();
        if (closed || own.first_ == nullptr) return new T;
        --own.count_;
        return std::exchange(own.first_, own.first_->*next);
    }
    static void put(T* object) noexcept {
        FreeList& own = of_thread();
        if (closed || own.count_ >= limit) {
            delete object;
            return;
        }
        object->*next = std::exchange(own.first_, object);
        ++own.count_;
    }

private:
    ~FreeList() {
        closed = true;
        while (first_ != nullptr) delete std::exchange(first_, first_->*next);
    }
    static FreeList& of_thread() {
        thread_local FreeList own;
        return own;
    }
    // Objects of static lifetime may be destroyed after the main thread's list.
    static constinit inline thread_local bool closed = false;
    T* first_ = nullptr;
    int count_ = 0;
};

}  // namespace mezzo
