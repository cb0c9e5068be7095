// Metrics of a classifier.
#pragma once

#include <cstdint>
#include <vector>

#include <mezzo/mezzo.h>

namespace bert {

class Confusion {
public:
    explicit Confusion(std::int64_t classes)
        : classes_(classes), counts_(std::size_t(classes * classes), 0) {}
    void add(std::int64_t truth, std::int64_t predicted) {
        ++counts_[std::size_t(truth * classes_ + predicted)];
    }
    // Adds the counts of the other ranks. Collective.
    void add_other_ranks(const mezzo::distributed::Group& group) {
        const mezzo::Tensor counts = mezzo::Tensor::from(counts_, {std::int64_t(counts_.size())});
        group.all_reduce_(counts);
        counts_ = counts.to_vector<std::int64_t>();
    }
    double accuracy() const {
        std::int64_t right = 0, all = 0;
        for (std::int64_t t = 0; t < classes_; ++t)
            for (std::int64_t p = 0; p < classes_; ++p) {
                all += at(t, p);
                if (t == p) right += at(t, p);
            }
        return all ? double(right) / double(all) : 0;
    }
    // Returns the mean over the classes of 2 TP / (2 TP + FP + FN); 0 for a class that neither occurs nor is
    // predicted.
    double macro_f1() const {
        double total = 0;
        for (std::int64_t c = 0; c < classes_; ++c) {
            std::int64_t wrong = 0;
            for (std::int64_t o = 0; o < classes_; ++o)
                if (o != c) wrong += at(c, o) + at(o, c);
            const std::int64_t right = 2 * at(c, c);
            if (right + wrong > 0) total += double(right) / double(right + wrong);
        }
        return total / double(classes_);
    }

private:
    std::int64_t at(std::int64_t truth, std::int64_t predicted) const {
        return counts_[std::size_t(truth * classes_ + predicted)];
    }
    std::int64_t classes_;
    std::vector<std::int64_t> counts_;
};

}  // namespace bert
