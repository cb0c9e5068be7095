#include "io/protobuf.h"

#include <cstring>

namespace mezzo::io {

namespace {

template <class Bits, class T> std::string bits_of(T value) {
    Bits bits;
    static_assert(sizeof bits == sizeof value);
    std::memcpy(&bits, &value, sizeof bits);
    return little_endian(bits);
}

}  // namespace

void Message::raw_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += char((value & 0x7f) | 0x80);
    text_ += char(value);
}

void Message::key(int field, unsigned wire_type) { raw_varint(std::uint64_t(field) << 3 | wire_type); }

Message& Message::varint(int field, std::uint64_t value) {
    key(field, 0);
    raw_varint(value);
    return *this;
}
Message& Message::number(int field, double value) {
    key(field, 1);
    text_ += bits_of<std::uint64_t>(value);
    return *this;
}
Message& Message::number(int field, float value) {
    key(field, 5);
    text_ += bits_of<std::uint32_t>(value);
    return *this;
}
Message& Message::announce(int field, std::uint64_t size) {
    key(field, 2);
    raw_varint(size);
    return *this;
}
Message& Message::bytes(int field, std::string_view value) {
    announce(field, value.size());
    text_ += value;
    return *this;
}
Message& Message::packed(int field, const std::vector<double>& values) {
    std::string all;
    for (const double value : values) all += bits_of<std::uint64_t>(value);
    return bytes(field, all);
}

}  // namespace mezzo::io
