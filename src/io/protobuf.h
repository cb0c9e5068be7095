// Writes the wire format of protobuf, as far as TensorBoard's events and ONNX models need it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/internal.h"

namespace mezzo::io {

template <class T> std::string little_endian(T value) {
    std::string bytes;
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes += char(value >> 8 * i & 0xff);
    return bytes;
}

// A message under construction. Fields with the default value are written too.
class MEZZO_INTERNAL Message {
public:
    Message& varint(int field, std::uint64_t value);
    Message& number(int field, double value);
    Message& number(int field, float value);
    Message& bytes(int field, std::string_view value);
    Message& message(int field, const Message& value) { return bytes(field, value.text()); }
    Message& packed(int field, const std::vector<double>& values);
    // Adds the key and length of a field of `size` bytes, which the caller writes behind this message.
    Message& announce(int field, std::uint64_t size);
    const std::string& text() const { return text_; }

private:
    void raw_varint(std::uint64_t value);
    void key(int field, unsigned wire_type);
    std::string text_;
};

}  // namespace mezzo::io
