// Reference-counted handle: copies share one object, and the last one deletes it. Copies may be made and
// destroyed in several threads at once.
#pragma once

#include <atomic>
#include <utility>

#include "mezzo/cpp20.h"

#pragma GCC visibility push(default)

namespace mezzo::detail {

struct SharedObject {
    SharedObject() = default;
    SharedObject(const SharedObject&) = delete;
    SharedObject& operator=(const SharedObject&) = delete;
    virtual ~SharedObject() = default;
    std::atomic<int> refs{1};
};

// A handle is never null: it has no move constructor, which would leave an empty one.
template <class Object> class SharedHandle {
public:
    explicit SharedHandle(Object* object) : object_(object) {}
    SharedHandle(const SharedHandle& other) : object_(other.object_) {
        object_->refs.fetch_add(1, std::memory_order_relaxed);
    }
    SharedHandle& operator=(const SharedHandle& other) & {
        SharedHandle copy(other);
        std::swap(object_, copy.object_);
        return *this;
    }
    ~SharedHandle() {
        if (object_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete object_;
    }
    Object* operator->() const { return object_; }

private:
    Object* object_;
};

}  // namespace mezzo::detail

#pragma GCC visibility pop
