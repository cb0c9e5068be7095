// A typed array in device memory for kernel tests.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <vector>

#include "cuda/runtime/runtime.h"

namespace mezzo::test {

template <class T> class DeviceArray {
public:
    explicit DeviceArray(std::size_t count)
        : data_(static_cast<T*>(cuda::device_malloc(count * sizeof(T)))), count_(count) {
        if (data_ == nullptr) throw std::runtime_error("DeviceArray: out of device memory");
    }
    explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
        cuda::copy_to_device(data_, values.data(), values.size() * sizeof(T));
    }
    DeviceArray(const DeviceArray&) = delete;
    DeviceArray& operator=(const DeviceArray&) = delete;
    ~DeviceArray() { cuda::device_free(data_); }

    T* data() const { return data_; }
    std::size_t size() const { return count_; }
    std::vector<T> host() const {
        std::vector<T> values(count_);
        cuda::copy_to_host(values.data(), data_, count_ * sizeof(T));
        return values;
    }

private:
    T* data_;
    std::size_t count_;
};

}  // namespace mezzo::test
