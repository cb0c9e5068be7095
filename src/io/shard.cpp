#include "mezzo/shard.h"

#include <algorithm>

#include "mezzo/error.h"

namespace mezzo::data {

ShardRows Shard::slice(std::int64_t rows) const {
    check(size >= 1 && rank >= 0 && rank < size, ErrorKind::value, "Shard: rank ", rank, " of ", size,
          "; ranks count from 0 to size - 1");
    check(rows >= 0, ErrorKind::value, "Shard: a batch of ", rows, " rows");
    const std::int64_t each = rows / size, longer = rows % size;
    if (rows > 0 && rank >= rows) return {.first = rows - 1, .count = 1, .weight = 0};
    const std::int64_t count = each + (rank < longer ? 1 : 0);
    return {.first = rank * each + std::min<std::int64_t>(rank, longer),
            .count = count,
            .weight = longer == 0 ? 1 : double(count) * size / double(rows)};
}

}  // namespace mezzo::data
