// Texts as bytes: each byte is a token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <mezzo/mezzo.h>

namespace gpt {

inline constexpr std::int64_t bytes = 256;  // of the vocabulary

struct Texts {
    std::string train, validation;
    std::string digest;  // of all
};

// The files, or the licences of this machine; the last tenth of each is for validation. Throws std::runtime_error
// where a part has not more than `context` bytes.
Texts read_texts(const std::vector<std::string>& files, std::int64_t context);

struct Pieces {
    mezzo::Tensor input, target;  // int64 [rows, context]; each target is the next input
    double weight = 1;            // of this rank's mean
};
// Pieces that begin at random places, decided by seed and step alone; the rows of this rank.
Pieces draw_pieces(const std::string& text, std::int64_t rows, std::int64_t context, std::uint64_t seed,
                   std::int64_t step, const mezzo::data::Shard& rank);
// Up to `rows` pieces, evenly spread over the text.
Pieces spread_pieces(const std::string& text, std::int64_t rows, std::int64_t context);

std::vector<std::int64_t> ids_of(const std::string& text);

}  // namespace gpt
