#include "train/event_record.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <zlib.h>

#include "io/crc.h"
#include "mezzo/error.h"

namespace mezzo::io {

namespace {

template <class T> std::string big_endian(T value) {
    std::string bytes = little_endian(value);
    std::reverse(bytes.begin(), bytes.end());
    return bytes;
}

}  // namespace

std::string tf_record(std::string_view payload) {
    const std::string length = little_endian(std::uint64_t(payload.size()));
    std::string record = length + little_endian(masked_crc32c(length));
    record += payload;
    return record + little_endian(masked_crc32c(payload));
}

std::string version_event(double wall_time) {
    return Message().number(1, wall_time).bytes(3, "brain.Event:2").text();
}

std::string summary_event(double wall_time, std::int64_t step, const Message& value) {
    return Message()
        .number(1, wall_time)
        .varint(2, std::uint64_t(step))
        .message(5, Message().message(1, value))
        .text();
}

Message scalar_value(const std::string& tag, double value) {
    return Message().bytes(1, tag).number(2, float(value));
}

Message text_value(const std::string& tag, const std::string& text) {
    const Message plugin = Message().bytes(1, "text"), shape = Message().message(2, Message().varint(1, 1));
    return Message()
        .bytes(1, tag)
        .message(8, Message().varint(1, 7).message(2, shape).bytes(8, text))
        .message(9, Message().message(1, plugin).varint(4, 2));
}

Message image_value(const std::string& tag, int height, int width, int channels, std::string_view png) {
    return Message().bytes(1, tag).message(4, Message()
                                                  .varint(1, std::uint64_t(height))
                                                  .varint(2, std::uint64_t(width))
                                                  .varint(3, std::uint64_t(channels))
                                                  .bytes(4, png));
}

namespace {

// TensorBoard's bucket limits: each is 1.1 times the previous one.
std::vector<double> bucket_limits() {
    std::vector<double> up;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) up.push_back(limit);
    up.push_back(std::numeric_limits<double>::max());
    std::vector<double> all;
    for (auto limit = up.rbegin(); limit != up.rend(); ++limit) all.push_back(-*limit);
    all.push_back(0);
    all.insert(all.end(), up.begin(), up.end());
    return all;
}

}  // namespace

Message histogram_value(const std::string& tag, const std::vector<double>& elements,
                        std::int64_t& nonfinite) {
    static const auto& limits = *new std::vector<double>(bucket_limits());  // threads may write during exit()
    std::vector<double> counts(limits.size(), 0.0);
    double low = HUGE_VAL, high = -HUGE_VAL, count = 0, sum = 0, squares = 0;
    nonfinite = 0;
    for (const double x : elements) {
        if (!std::isfinite(x)) {
            ++nonfinite;
            continue;
        }
        low = std::min(low, x);
        high = std::max(high, x);
        ++count;
        sum += x;
        squares += x * x;
        ++counts[std::size_t(std::lower_bound(limits.begin(), limits.end(), x) - limits.begin())];
    }
    if (count == 0) low = high = 0;
    // Drops the empty buckets at both ends, except one below, whose limit is where the first bucket begins.
    const auto occurs = [](double n) { return n != 0; };
    const auto last = std::find_if(counts.rbegin(), counts.rend(), occurs).base() - counts.begin();
    const auto first = std::find_if(counts.begin(), counts.end(), occurs) - counts.begin();
    const auto begin = std::max<std::ptrdiff_t>(0, std::min(first, last) - 1);
    const std::vector<double> used(limits.begin() + begin, limits.begin() + last);
    return Message().bytes(1, tag).message(5,
                                           Message()
                                               .number(1, low)
                                               .number(2, high)
                                               .number(3, count)
                                               .number(4, sum)
                                               .number(5, squares)
                                               .packed(6, used)
                                               .packed(7, {counts.begin() + begin, counts.begin() + last}));
}

namespace {

std::string png_chunk(const std::string& type, const std::string& data) {
    const std::string body = type + data;
    const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(body.data()), uInt(body.size()));
    return big_endian(std::uint32_t(data.size())) + body + big_endian(std::uint32_t(crc));
}

}  // namespace

std::string png_of(const unsigned char* pixels, int height, int width, int channels) {
    const std::size_t row = std::size_t(width) * std::size_t(channels);
    std::string lines;
    for (int y = 0; y < height; ++y) {
        lines += '\0';  // no filter
        lines.append(reinterpret_cast<const char*>(pixels) + std::size_t(y) * row, row);
    }
    uLongf size = compressBound(uLong(lines.size()));
    std::string packed(size, '\0');
    const int status = compress(reinterpret_cast<Bytef*>(packed.data()), &size,
                                reinterpret_cast<const Bytef*>(lines.data()), uLong(lines.size()));
    check(status == Z_OK, ErrorKind::memory, "SummaryWriter.add_image: zlib failed with ", status);
    packed.resize(size);
    const char color = channels == 1 ? 0 : channels == 3 ? 2 : 6;
    std::string header = big_endian(std::uint32_t(width)) + big_endian(std::uint32_t(height));
    header += {8, color, 0, 0, 0};
    return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header) + png_chunk("IDAT", packed) +
           png_chunk("IEND", "");
}

}  // namespace mezzo::io
