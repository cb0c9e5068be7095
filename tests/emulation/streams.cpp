#include "tests/emulation/streams.h"

#include <utility>

#include "tests/emulation/engine.h"

namespace mezzo::emulation {

using cuda::StreamKind;

Streams& Streams::get() {
    static Streams* streams = new Streams;  // never destroyed: tensors of static lifetime are freed late
    return *streams;
}

void queue_work(std::function<void()> work) { Streams::get().add(StreamKind::compute, std::move(work)); }

void Streams::queue(StreamKind kind, Op op) {
    const std::lock_guard lock(mutex_);
    stream(kind).ops.push_back(std::move(op));
    ++stream(kind).queued;
    if (kind == StreamKind::compute && !options.late_work) finish(kind);
    run_early_copies();
}

void Streams::add(StreamKind kind, std::function<void()> work) { queue(kind, {.work = std::move(work)}); }

void Streams::hold(StreamKind kind, StreamKind other, std::uint64_t position) {
    queue(kind, {.work = nullptr, .other = other, .position = position});
}

std::uint64_t Streams::position(StreamKind kind) {
    const std::lock_guard lock(mutex_);
    return stream(kind).queued;
}

bool Streams::done(StreamKind kind, std::uint64_t position) {
    const std::lock_guard lock(mutex_);
    return stream(kind).done >= position;
}

// A wait depends only on what was queued before it, so the recursion ends.
void Streams::run_until(StreamKind kind, std::uint64_t position) {
    const std::lock_guard lock(mutex_);
    Stream& s = stream(kind);
    while (s.done < position) {
        const Op op = std::move(s.ops.front());
        s.ops.pop_front();
        ++s.done;
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
    finish(StreamKind::copy);
    finish(StreamKind::compute);
}

}  // namespace mezzo::emulation
