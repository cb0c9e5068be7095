// TensorBoard's event files: the protobuf messages that mezzo writes, field by field, and the records of the
// file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/protobuf.h"

namespace mezzo::io {

// Returns a record of the file: length, payload, and checksums of both.
std::string tf_record(std::string_view payload);

// Payloads. `value` is a Summary.Value.
std::string version_event(double wall_time);
std::string summary_event(double wall_time, std::int64_t step, const Message& value);
Message scalar_value(const std::string& tag, double value);
Message text_value(const std::string& tag, const std::string& text);
Message image_value(const std::string& tag, int height, int width, int channels, std::string_view png);
// Elements that are not finite are left out, and counted in `nonfinite`.
Message histogram_value(const std::string& tag, const std::vector<double>& elements, std::int64_t& nonfinite);

// Encodes an image as a PNG file. Rows are 8-bit and contiguous.
std::string png_of(const unsigned char* pixels, int height, int width, int channels);

}  // namespace mezzo::io
