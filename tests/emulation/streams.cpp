#include "tests/emulation/streams.h"

#include <array>
#include <utility>

#include "tests/emulation/communication.h"
#include "tests/emulation/engine.h"

namespace mezzo::emulation {

using cuda::StreamKind;

namespace {
// Counts a piece of work as done, also if it throws.
struct Done {
    std::atomic<std::uint64_t>& count;
    explicit Done(std::atomic<std::uint64_t>& c) : count(c) {}
    ~Done() {
        ++count;
        note_progress();
    }
    Done(const Done&) = delete;
    Done& operator=(const Done&) = delete;
};
}  // namespace

Streams::Lock::~Lock() {
    streams_.mutex_.unlock();
    if (streams_.wanted_.exchange(false)) note_progress();
}

Streams& Streams::get() {
    // Never destroyed: tensors of static lifetime are freed late.
    static const auto& all = *[] {
        auto* const made = new std::array<Streams*, 64>;
        for (int device = 0; device < 64; ++device) (*made)[std::size_t(device)] = new Streams(device);
        return made;
    }();
    return *all[std::size_t(cuda::current_device())];
}

void queue_work(std::function<void()> work) { Streams::get().add(StreamKind::compute, std::move(work)); }

void Streams::queue(StreamKind kind, Op op) {
    const Lock lock(*this);
    stream(kind).ops.push_back(std::move(op));
    ++stream(kind).queued;
    if (kind == StreamKind::compute && !options.late_work) finish(kind);
    run_early_copies();
}

void Streams::add(StreamKind kind, std::function<void()> work) { queue(kind, {.work = std::move(work)}); }

void Streams::hold(StreamKind kind, StreamKind other, std::uint64_t position) {
    if (kind == StreamKind::communication) {
        communication_of(device_).add([=, this] { return try_run_until(other, position); });
        return;
    }
    queue(kind, {.work = nullptr, .other = other, .position = position});
}

std::uint64_t Streams::position(StreamKind kind) {
    if (kind == StreamKind::communication) return communication_of(device_).position();
    const Lock lock(*this);
    return stream(kind).queued;
}

bool Streams::done(StreamKind kind, std::uint64_t position) {
    if (kind == StreamKind::communication) return communication_of(device_).done(position);
    return stream(kind).done >= position;
}

// A thread that has the mutex may wait for the communication stream, from which this is called: it comes
// after what is asked for here, or will do that itself.
bool Streams::try_run_until(StreamKind kind, std::uint64_t position) {
    if (done(kind, position)) return true;
    wanted_ = true;  // before the attempt: who has the mutex now sees it afterwards
    if (!mutex_.try_lock()) return false;
    const Lock lock(*this);
    mutex_.unlock();
    run_until(kind, position);
    return true;
}

// A wait depends only on what was queued before it, so the recursion ends.
void Streams::run_until(StreamKind kind, std::uint64_t position) {
    if (kind == StreamKind::communication) return communication_of(device_).run_until(position);
    const Lock lock(*this);
    Stream& s = stream(kind);
    while (s.done < position) {
        if (s.ops.empty()) break;  // the rest is being run, further up
        const Op op = std::move(s.ops.front());
        s.ops.pop_front();
        const Done done_after(s.done);
        if (op.work)
            op.work();
        else
            run_until(op.other, op.position);
    }
    run_early_copies();
}

void Streams::run_early_copies() {
    if (!options.early_copies) return;
    Stream& copies = stream(StreamKind::copy);
    while (!copies.ops.empty()) {
        const Op& op = copies.ops.front();
        if (!op.work && !done(op.other, op.position)) return;
        run_until(StreamKind::copy, copies.done + 1);
    }
}

void Streams::finish_all() {
    communication_of(device_).advance(position(StreamKind::communication));
    finish(StreamKind::copy);
    finish(StreamKind::compute);
}

}  // namespace mezzo::emulation
