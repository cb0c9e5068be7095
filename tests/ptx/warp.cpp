#include "tests/ptx/warp.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

namespace mezzo::ptx {
namespace {

// Calls f(lane) for each lane in the mask.
template <class F> void for_each_lane(std::uint32_t mask, const F& f) {
    for (; mask != 0; mask &= mask - 1) f(unsigned(std::countr_zero(mask)));
}

unsigned first_lane(std::uint32_t mask) { return unsigned(std::countr_zero(mask)); }

}  // namespace

void Warp::start(Block& of) {
    block = &of;
    exist = blocked = carry = 0;
    for (unsigned l = 0; l < warp_size; ++l) {
        const unsigned thread = index * warp_size + l;
        const Dim &shape = of.shape, &at = of.index, &grid = of.grid;
        if (thread < shape.count()) exist |= 1u << l;
        // in the order of Decoder's special registers
        const unsigned values[] = {thread % shape.x,
                                   thread / shape.x % shape.y,
                                   thread / (shape.x * shape.y),
                                   at.x,
                                   at.y,
                                   at.z,
                                   shape.x,
                                   shape.y,
                                   shape.z,
                                   grid.x,
                                   grid.y,
                                   grid.z,
                                   l};
        std::int32_t offset = 0;
        for (const unsigned value : values) {
            reg<std::uint32_t>(offset)[l] = value;
            offset += std::int32_t(sizeof(std::uint32_t) * warp_size);
        }
        counters[l] = 0;
        copies[l].clear();
    }
    live = exist;
    epoch = 1;
    at_barrier = false;
    std::fill(local.begin(), local.end(), char(0xFF));
}

Warp::Group Warp::furthest_behind() const {
    Group group{0, all_lanes, all_lanes, false};
    for_each_lane(live & ~blocked, [&](unsigned l) { group.counter = std::min(group.counter, counters[l]); });
    for_each_lane(live, [&](unsigned l) {
        if (counters[l] == group.counter)
            group.lanes |= 1u << l;
        else if (counters[l] > group.counter)
            group.next = std::min(group.next, counters[l]);
    });
    group.alone = group.lanes == live;
    return group;
}

void Warp::set_counters(const Group& group) {
    for_each_lane(group.lanes, [&](unsigned l) { counters[l] = group.counter; });
}

// The lanes that a warp call names. All lanes that execute it must name the same.
std::uint32_t Warp::members(const Instruction& i, std::uint32_t active) {
    if (i.aligned) return exist;
    const std::uint32_t* const masks = reg<std::uint32_t>(i.operands[i.mask_operand]);
    const std::uint32_t mask = masks[first_lane(active)];
    for_each_lane(active, [&](unsigned l) {
        if (masks[l] != mask) fault(*this, i, l, "lanes name different masks");
        if ((mask >> l & 1) == 0) fault(*this, i, l, "a lane is not in its own mask");
    });
    return exist != all_lanes && mask == all_lanes ? exist : mask;
}

// False ends the group's turn: it divides, or goes back while others wait.
bool Warp::branch(Group& group, const Instruction& i, std::uint32_t mask) {
    if (mask == 0) {
        ++group.counter;
        return true;
    }
    if (mask != group.lanes) {
        for_each_lane(group.lanes,
                      [&](unsigned l) { counters[l] = (mask >> l & 1) != 0 ? i.target : group.counter + 1; });
        return false;
    }
    const bool back = i.target <= group.counter;
    group.counter = i.target;
    if (!back || group.alone) return true;
    set_counters(group);
    return false;
}

void Warp::leave(Group& group, const Instruction& i, std::uint32_t mask) {
    for_each_lane(mask, [&](unsigned l) {
        for (const auto& copy_group : copies[l])
            if (!copy_group.empty())
                fault(*this, i, l, "the thread returns without waiting for its cp.async");
    });
    live &= ~mask;
    group.lanes &= ~mask;
    ++group.counter;
    set_counters(group);
}

// False while the lanes wait.
bool Warp::synchronize(Group& group, const Instruction& i, std::uint32_t mask) {
    if (mask != group.lanes)
        fault(*this, i, first_lane(group.lanes),
              "a call of the whole warp or block under a predicate that divides the warp");
    const bool of_block = i.flow == Flow::block_sync;
    const std::uint32_t needed = of_block ? live : members(i, group.lanes);
    if ((needed & ~group.lanes) != 0) {
        if ((needed & ~live) != 0)
            fault(*this, i, first_lane(group.lanes), "a warp call waits for lanes that have returned");
        set_counters(group);
        blocked |= group.lanes;
        return false;
    }
    if (of_block) {
        set_counters(group);
        at_barrier = true;
        return false;
    }
    i.execute(*this, i, group.lanes);
    ++group.counter;
    return true;
}

// Executes one instruction. False ends the group's turn, with the lanes' counters set.
bool Warp::step(Group& group) {
    const Instruction& i = kernel->code[group.counter];
    std::uint32_t mask = group.lanes;
    if (i.guard >= 0) mask &= i.negated_guard ? ~predicate(i.guard) : predicate(i.guard);
    ++i.executions;
    ++totals.warp_instructions;
    totals.lane_instructions += unsigned(std::popcount(mask));
    switch (i.flow) {
        case Flow::next:
            if (mask != 0) i.execute(*this, i, mask);
            ++group.counter;
            return true;
        case Flow::branch:
            return branch(group, i, mask);
        case Flow::leave:
            leave(group, i, mask);
            return false;
        default:
            return synchronize(group, i, mask);
    }
}

void Warp::report_deadlock() {
    std::string text = "lanes of a warp wait for each other:";
    for_each_lane(live, [&](unsigned l) { text += fmt::format(" {}@{}", l, counters[l]); });
    fault(*this, kernel->code[counters[first_lane(live)]], first_lane(live), text);
}

void Warp::run(std::uint64_t budget) {
    while (!at_barrier && (live & ~blocked) != 0) {
        if (budget == 0) return;
        Group group = furthest_behind();
        blocked &= ~group.lanes;
        bool goes_on = true;
        while (goes_on) {
            goes_on = step(group);
            --budget;
            if (goes_on && (budget == 0 || group.counter >= group.next)) {
                set_counters(group);
                goes_on = false;
            }
        }
    }
    if (!at_barrier && live != 0) report_deadlock();
}

}  // namespace mezzo::ptx
