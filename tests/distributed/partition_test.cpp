// Division of tensors among ranks, and joining of the shards.
#include "distributed/partition.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "distributed/gather_shards.h"
#include "mezzo/ops.h"
#include "tests/distributed/thread_group.h"

using namespace mezzo;
using namespace mezzo::test;
using distributed::Group;
using distributed::Partition;

namespace {

Tensor filled(const Shape& shape, double value, Dtype dtype) { return full(shape, value, {.dtype = dtype}); }

}  // namespace

TEST_CASE("partition: ranks have all elements, each once, in equal shares", "[distributed]") {
    const std::vector<std::vector<std::int64_t>> lists = {
        {1}, {0}, {64, 64}, {1000, 3, 0, 77, 100000, 1}, std::vector<std::int64_t>(50, 24)};
    for (const auto& numels : lists)
        for (const int ranks : {1, 2, 3, 4, 7}) {
            CAPTURE(numels, ranks);
            const Partition partition(numels, ranks);
            std::vector<std::int64_t> shares(static_cast<std::size_t>(ranks));
            for (std::size_t i = 0; i < numels.size(); ++i) {
                std::int64_t covered = 0;
                for (int rank = 0; rank < ranks; ++rank) {
                    const optim::LocalShard part = partition.part(i, rank);
                    if (part.count == 0) continue;
                    CHECK(part.begin == covered);
                    CHECK(part.begin % 256 == 0);
                    covered += part.count;
                    shares[std::size_t(rank)] += (part.count + 255) / 256 * 256;
                }
                CHECK(covered == numels[i]);
            }
            std::int64_t total = 0;
            for (const std::int64_t n : numels) total += (n + 255) / 256 * 256;
            const std::int64_t share = (total + ranks * 256 - 1) / (ranks * 256) * 256;
            CHECK(*std::max_element(shares.begin(), shares.end()) <= share);
        }
}

TEST_CASE("gather_parts: every rank gets the others' parts, in several messages", "[distributed]") {
    const std::vector<std::int64_t> numels{3, 3000001, 70, 0, 5000000};
    const Dtype dtypes[] = {float64, float32, bfloat16, float32, float16};
    for (const int ranks : {2, 3}) {
        CAPTURE(ranks);
        run_ranks(ranks, [&](const Group& group) {
            const Partition partition(numels, ranks);
            std::vector<optim::PartialTensor> tensors;
            for (std::size_t i = 0; i < numels.size(); ++i) {
                tensors.push_back({i, filled({numels[i]}, -1, dtypes[i])});
                const optim::LocalShard part = partition.part(i, group.rank());
                tensors.back()
                    .tensor.slice(0, part.begin, part.begin + part.count)
                    .copy_(filled({part.count}, group.rank() + 1.0, dtypes[i]));
            }
            distributed::gather_parts(tensors, partition, group);
            for (const optim::PartialTensor& tensor : tensors)
                for (int rank = 0; rank < ranks; ++rank) {
                    const std::size_t i = tensor.slot;
                    const optim::LocalShard part = partition.part(i, rank);
                    const Tensor found = tensor.tensor.slice(0, part.begin, part.begin + part.count);
                    RANK_CHECK(all_close(found, filled(found.shape(), rank + 1.0, dtypes[i]), 0, 0));
                }
        });
    }
}

TEST_CASE("gather_parts: ranks that gather different tensors", "[distributed]") {
    run_ranks(2, [](const Group& group) {
        const Partition partition({500, 500}, 2);
        const auto gather = [&](std::size_t slot, Dtype dtype) {
            distributed::gather_parts({{slot, filled({500}, 0, dtype)}}, partition, group);
        };
        const bool first = group.rank() == 0;
        RANK_CHECK_THROWS(gather(0, first ? float32 : float64), "exchange of parts of 4032 bytes");
        RANK_CHECK_THROWS(gather(first ? 0 : 1, float32), "exchange of parts of 2048 bytes");
        group.barrier();
    });
}
