// Groups whose ranks are threads of one process, over shared memory: for tests in which no process has to
// die, and for the sanitizers, which do not see into libgloo.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/visit_dtype.h"
#include "distributed/group_impl.h"
#include "mezzo/error.h"

namespace mezzo::test {

// State shared by all ranks: the current call of each of them, and a barrier.
class Meeting {
public:
    struct Call {
        const char* name = "";
        const void* in = nullptr;
        std::size_t bytes = 0;
        int detail = 0;  // root, or operation and dtype
    };
    std::atomic<int> reductions{0};  // that have begun, counted once for all ranks
    explicit Meeting(int ranks) : calls_(std::size_t(ranks)) {}

    // Publishes this rank's call and waits for all. Throws Error(backend) on all ranks if their calls differ.
    void meet(int rank, const Call& call) {
        {
            std::unique_lock lock(mutex_);
            check(!aborted_, ErrorKind::backend, given_up);
            calls_[std::size_t(rank)] = call;
            if (!arrive(lock, [&] { return aborted_; })) {
                // A rank that arrives later must not count this one as present: the buffer that its call
                // names is gone by then.
                --waiting_;
                fail(ErrorKind::backend, given_up);
            }
        }
        for (const Call& other : calls_)
            check(std::strcmp(other.name, call.name) == 0 && other.bytes == call.bytes &&
                      other.detail == call.detail,
                  ErrorKind::backend, "threads: one rank calls ", call.name, " of ", call.bytes,
                  " bytes, another ", other.name, " of ", other.bytes);
    }
    // Waits for the other ranks after meet(). All of them arrive here, so none returns while another may
    // still read its memory.
    void wait() {
        std::unique_lock lock(mutex_);
        arrive(lock, [] { return false; });
    }
    const char* bytes_of(int rank) const { return static_cast<const char*>(calls_[std::size_t(rank)].in); }
    int ranks() const { return int(calls_.size()); }
    void abort() {
        const std::lock_guard lock(mutex_);
        aborted_ = true;
        all_here_.notify_all();
    }

private:
    static constexpr const char* given_up = "threads: another rank has given up";
    // Counts this rank and waits. Returns whether all ranks have arrived.
    template <class GivesUp> bool arrive(std::unique_lock<std::mutex>& lock, const GivesUp& gives_up) {
        const std::uint64_t round = round_;
        if (++waiting_ == calls_.size()) {
            waiting_ = 0;
            ++round_;
            all_here_.notify_all();
            return true;
        }
        all_here_.wait(lock, [&] { return round_ != round || gives_up(); });
        return round_ != round;
    }

    std::mutex mutex_;
    std::condition_variable all_here_;
    std::vector<Call> calls_;
    std::size_t waiting_ = 0;
    std::uint64_t round_ = 0;
    bool aborted_ = false;
};

class ThreadCollectives final : public distributed::Collectives {
public:
    ThreadCollectives(std::shared_ptr<Meeting> meeting, int rank)
        : meeting_(std::move(meeting)), rank_(rank) {}

    // Adds as a ring does: part r of the elements is added beginning with rank r.
    void all_reduce(void* data, std::int64_t count, Dtype dtype, distributed::ReduceOp op) override {
        const std::size_t bytes = std::size_t(count) * size_of(dtype);
        meeting_->meet(rank_, {"all_reduce", data, bytes, int(dtype) * 8 + int(op)});
        if (rank_ == 0) ++meeting_->reductions;
        std::vector<char> result(bytes);
        visit_dtype(dtype, [&](auto type) {
            using T = typename decltype(type)::type;
            if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)
                reduce<T>(reinterpret_cast<T*>(result.data()), count, op);
        });
        meeting_->wait();
        std::copy(result.begin(), result.end(), static_cast<char*>(data));
        meeting_->wait();
    }
    void all_gather(const void* mine, void* all, std::size_t bytes) override {
        meeting_->meet(rank_, {"all_gather", mine, bytes});
        for (int rank = 0; rank < meeting_->ranks(); ++rank)
            copy(static_cast<char*>(all) + std::size_t(rank) * bytes, meeting_->bytes_of(rank), bytes);
        meeting_->wait();
    }
    void all_to_all(const void* sent, void* received, std::size_t bytes) override {
        meeting_->meet(rank_, {"all_to_all", sent, bytes});
        for (int rank = 0; rank < meeting_->ranks(); ++rank)
            copy(static_cast<char*>(received) + std::size_t(rank) * bytes,
                 meeting_->bytes_of(rank) + std::size_t(rank_) * bytes, bytes);
        meeting_->wait();
    }
    void broadcast(void* data, std::size_t bytes, int root) override {
        meeting_->meet(rank_, {"broadcast", data, bytes, root});
        if (rank_ != root) copy(data, meeting_->bytes_of(root), bytes);
        meeting_->wait();
    }
    const char* name() const override { return "threads"; }
    void abort() noexcept override { meeting_->abort(); }

private:
    static void copy(void* to, const void* from, std::size_t bytes) {
        if (bytes != 0) std::memcpy(to, from, bytes);
    }
    template <class T> void reduce(T* result, std::int64_t count, distributed::ReduceOp op) const {
        using distributed::ReduceOp;
        const int ranks = meeting_->ranks();
        for (std::int64_t i = 0; i < count; ++i) {
            const int first = int(i * ranks / count);
            T value = at<T>(first, i);
            for (int r = 1; r < ranks; ++r) {
                const T more = at<T>((first + r) % ranks, i);
                if (op == ReduceOp::min)
                    value = std::min(value, more);
                else if (op == ReduceOp::max)
                    value = std::max(value, more);
                else
                    value = T(value + more);
            }
            result[i] = op == ReduceOp::mean ? T(value * T(1.0 / ranks)) : value;
        }
    }
    template <class T> T at(int rank, std::int64_t i) const {
        return reinterpret_cast<const T*>(meeting_->bytes_of(rank))[i];
    }

    std::shared_ptr<Meeting> meeting_;
    int rank_;
};

inline std::vector<distributed::Group> thread_groups(const std::shared_ptr<Meeting>& meeting) {
    const int ranks = meeting->ranks();
    std::vector<distributed::Group> groups;
    for (int rank = 0; rank < ranks; ++rank)
        groups.push_back(distributed::make_group({rank, ranks, rank, ranks},
                                                 std::make_unique<ThreadCollectives>(meeting, rank)));
    return groups;
}

// The exception of each rank, and the one that was thrown first.
struct RankErrors {
    std::vector<std::exception_ptr> by_rank = {};
    std::exception_ptr first = {};
};

// Runs body(group) as every rank of a group at once. Catch's own assertions are not thread-safe: bodies use
// RANK_CHECK.
template <class F> RankErrors run_and_collect(const std::shared_ptr<Meeting>& meeting, const F& body) {
    std::vector<distributed::Group> groups = thread_groups(meeting);
    RankErrors errors{.by_rank = std::vector<std::exception_ptr>(groups.size())};
    std::mutex mutex;
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < groups.size(); ++rank)
        threads.emplace_back([&, rank] {
            try {
                body(groups[rank]);
            } catch (const std::exception& error) {
                errors.by_rank[rank] = std::current_exception();
                {
                    const std::lock_guard lock(mutex);
                    if (!errors.first) errors.first = std::current_exception();
                }
                groups[rank].impl().break_with("rank " + std::to_string(rank) + ": " + error.what());
            }
        });
    for (std::thread& thread : threads) thread.join();
    return errors;
}

// Exceptions of the ranks.
template <class F> std::vector<std::exception_ptr> errors_of_ranks(int ranks, const F& body) {
    return run_and_collect(std::make_shared<Meeting>(ranks), body).by_rank;
}

// Runs body(group) as every rank and rethrows the first error.
template <class F> void run_ranks(const std::shared_ptr<Meeting>& meeting, const F& body) {
    if (const RankErrors errors = run_and_collect(meeting, body); errors.first)
        std::rethrow_exception(errors.first);
}
template <class F> void run_ranks(int ranks, const F& body) {
    run_ranks(std::make_shared<Meeting>(ranks), body);
}

inline std::string text_of(const std::exception_ptr& error) {
    if (!error) return "";
    try {
        std::rethrow_exception(error);
    } catch (const std::exception& e) {
        return e.what();
    }
}

inline void require_on_rank(bool good, const char* what, int line) {
    check(good, ErrorKind::state, "line ", line, ": ", what);
}
template <class F> void require_error_on_rank(const F& call, const char* part, int line) {
    std::string text = "no error";
    try {
        call();
    } catch (const std::exception& error) {
        text = error.what();
    }
    check(text.find(part) != std::string::npos, ErrorKind::state, "line ", line, ": ", text,
          " lacks: ", part);
}

}  // namespace mezzo::test

// Assertions for the body of a rank. A failure ends the rank, and run_ranks() throws its message.
#define RANK_CHECK(...) ::mezzo::test::require_on_rank(static_cast<bool>(__VA_ARGS__), #__VA_ARGS__, __LINE__)
#define RANK_CHECK_THROWS(call, part) \
    ::mezzo::test::require_error_on_rank([&] { static_cast<void>(call); }, part, __LINE__)
