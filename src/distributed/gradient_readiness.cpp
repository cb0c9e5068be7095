#include "distributed/gradient_readiness.h"

#include <algorithm>

namespace mezzo::distributed {

Arrivals::Arrivals(std::size_t leaves)
    : reached_(leaves),
      open_(leaves),
      expected_(leaves, none),
      last_opaque_(leaves, none),
      last_opaque_before_(leaves, none),
      deliveries_(leaves) {}

void Arrivals::begin(const BackwardPlan& plan) {
    plan_ = plan.order;
    opaque_ = plan.opaque;
    running_ = none;
    delivery_ = 0;
    std::fill(reached_.begin(), reached_.end(), false);
    std::fill(deliveries_.begin(), deliveries_.end(), 0);
    std::fill(last_opaque_.begin(), last_opaque_.end(), none);
    for (const std::uint32_t place : plan_) reached_[place] = true;
    open_ = reached_;
    set_expected();
}

void Arrivals::set_expected() {
    std::fill(expected_.begin(), expected_.end(), none);
    if (opaque_ == 0) return;
    for (std::size_t place = 0; place < expected_.size(); ++place) {
        const std::size_t before = last_opaque_before_[place];
        if (opaque_ == opaque_before_ && (before != none || reached_[place]))
            expected_[place] = before;
        else
            expected_[place] = opaque_ - 1;
    }
}

std::vector<std::uint32_t> Arrivals::unreached() const {
    std::vector<std::uint32_t> result;
    for (std::uint32_t place = 0; place < open_.size(); ++place)
        if (!open_[place] && expected_[place] == none) result.push_back(place);
    return result;
}

std::vector<std::uint32_t> Arrivals::finished(std::uint32_t place) {
    open_[place] = false;
    return expected_[place] == none ? std::vector{place} : std::vector<std::uint32_t>{};
}

std::vector<std::uint32_t> Arrivals::opaque_finished(std::size_t number) {
    running_ = none;
    std::vector<std::uint32_t> result;
    for (std::uint32_t place = 0; place < expected_.size(); ++place) {
        if (expected_[place] != number) continue;
        expected_[place] = none;
        if (!open_[place]) result.push_back(place);
    }
    return result;
}

void Arrivals::delivered(std::uint32_t place) {
    deliveries_[place] = ++delivery_;
    if (running_ != none) last_opaque_[place] = running_;
}

void Arrivals::end() {
    if (opaque_ == 0) return;
    opaque_before_ = opaque_;
    last_opaque_before_ = last_opaque_;
}

std::vector<std::uint32_t> Arrivals::order() const {
    std::vector<std::uint32_t> result;
    if (opaque_ == 0) {
        result = plan_;
    } else {
        for (std::uint32_t place = 0; place < deliveries_.size(); ++place)
            if (deliveries_[place] != 0) result.push_back(place);
        std::sort(result.begin(), result.end(),
                  [this](std::uint32_t a, std::uint32_t b) { return deliveries_[a] < deliveries_[b]; });
    }
    std::vector<bool> listed(deliveries_.size());
    for (const std::uint32_t place : result) listed[place] = true;
    for (std::size_t place = listed.size(); place-- > 0;)
        if (!listed[place]) result.push_back(std::uint32_t(place));
    return result;
}

}  // namespace mezzo::distributed
