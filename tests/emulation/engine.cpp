#include "tests/emulation/engine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "tests/emulation/fiber_switch.h"
#include "tests/emulation/idle.h"

namespace mezzo::emulation {
namespace {

#if defined(MEZZO_ASAN) || defined(MEZZO_TSAN)
constexpr std::size_t stack_bytes = 256 << 10;
#else
constexpr std::size_t stack_bytes = 64 << 10;
#endif
// If a fiber runs a thread of one block and then a thread of the next, TSan takes both for one thread and
// sees an order between the blocks. Two sets of fibers, used in turn, prevent that for consecutive blocks.
#ifdef MEZZO_TSAN
constexpr unsigned sets = 2;
#else
constexpr unsigned sets = 1;
#endif
constexpr std::size_t guard = 64 << 10,
                      stack_step = stack_bytes + guard;  // a page, which may be as large on aarch64

std::string block_text() {
    return "block (" + std::to_string(blockIdx.x) + "," + std::to_string(blockIdx.y) + "," +
           std::to_string(blockIdx.z) + ")";
}

}  // namespace

Engine& Engine::get() {
    static Engine* engine = new Engine;  // never destroyed: fibers are parked in it
    return *engine;
}

void Engine::make_fibers(unsigned count) {
    count *= sets;
    if (fibers_.size() >= count) return;
    drop_fibers();
    void* memory = mmap(nullptr, stack_step * count, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    stacks_ = static_cast<char*>(memory);
    fibers_.resize(count);
    for (unsigned i = 0; i < count; ++i) {
        Fiber& f = fibers_[i];
        mprotect(stacks_ + i * stack_step, guard, PROT_NONE);
        f.stack = stacks_ + i * stack_step + guard;
        f.stack_size = stack_bytes;
        f.stack_pointer = first_frame(f.stack + f.stack_size, &Engine::entry);
#ifdef MEZZO_TSAN
        f.tsan = __tsan_create_fiber(0);
#endif
    }
}

// Called after a failed launch, too: abandoned frames are never unwound. TSan's fibers leak on purpose: a
// parked one is inside a Hidden scope, and TSan refuses to destroy it there.
void Engine::drop_fibers() {
    if (stacks_ == nullptr) return;
#ifdef MEZZO_ASAN
    __asan_unpoison_memory_region(stacks_, stack_step * fibers_.size());
#endif
    munmap(stacks_, stack_step * fibers_.size());
    fibers_.clear();
    stacks_ = nullptr;
}

// Notifies TSan that what the threads of a failed launch did comes before what the caller does next.
void Engine::release_abandoned() {
#ifdef MEZZO_TSAN
    for (const Fiber* f : by_index_) {
        __tsan_switch_to_fiber(f->tsan, __tsan_switch_to_fiber_no_sync);
        release_edge(&done_edge_);
    }
    __tsan_switch_to_fiber(main_.tsan, __tsan_switch_to_fiber_no_sync);
#endif
}

void Engine::switch_to(Fiber& to) {
    Fiber& from = *current_;
    current_ = &to;
    threadIdx = to.thread;
#ifdef MEZZO_TSAN
    __tsan_switch_to_fiber(to.tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef MEZZO_ASAN
    __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_size);
#endif
    mezzo_fiber_switch(&from.stack_pointer, to.stack_pointer);
    landed(from.fake_stack);
}

void Engine::landed([[maybe_unused]] void* fake_stack) {
#ifdef MEZZO_ASAN
    const void* bottom = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(fake_stack, &bottom, &size);
    if (main_.stack != nullptr) return;
    main_.stack = static_cast<char*>(const_cast<void*>(bottom));  // the first fiber learns the caller's stack
    main_.stack_size = size;
#endif
}

void Engine::entry() {
    Engine& e = get();
    e.landed(nullptr);
    for (;;) {
        acquire_edge(&e.launch_edge_);
        try {
            e.body_(e.argument_);
            e.require_no_copies();
        } catch (...) {
            Hidden hidden;
            e.error_ = std::current_exception();
        }
        release_edge(&e.done_edge_);
        Hidden hidden;
        e.current_->done = true;
        ++e.finished_;
        if (e.error_) e.switch_to(e.main_);  // never resumed
        e.park();
    }
}

void Engine::wake(Fiber* fiber) {
    fiber->waits_in = nullptr;
    ready_.push_back(fiber);
}

// Gives the processor to the next runnable fiber, or to the launcher if there is none.
void Engine::park() {
    Fiber* to = &main_;
    if (ready_head_ < ready_.size()) {
        if (options.schedule == 1) {
            to = ready_.back();
            ready_.pop_back();
        } else {
            if (options.schedule > 1) {  // xorshift64
                random_ ^= random_ << 13;
                random_ ^= random_ >> 7;
                random_ ^= random_ << 17;
                std::swap(ready_[ready_head_], ready_[ready_head_ + random_ % (ready_.size() - ready_head_)]);
            }
            to = ready_[ready_head_++];
        }
        if (ready_head_ == ready_.size()) {
            ready_.clear();
            ready_head_ = 0;
        }
    }
    if (to != current_) switch_to(*to);
}

void Engine::yield() {
    Hidden hidden;
    wake(current_);
    park();
}

void Engine::fail(const std::string& what, Site site) {
    throw Error(what + " at " + site.text() + ", " + block_text() + " thread " +
                std::to_string(current_->index));
}

void Engine::require_no_copies() {
    for (const auto& group : current_->copies)
        if (!group.empty())
            fail("cp.async: the thread returned without waiting for the copy", group.front().site);
}

std::string Engine::stuck() const {
    std::map<std::string, std::pair<unsigned, unsigned>> places;  // call site -> count, first thread
    for (const Fiber* f : by_index_) {
        const std::string place = f->done ? "returned from the kernel"
                                          : std::string("waits in ") + f->waits_in + " at " + f->site.text();
        ++places.try_emplace(place, 0u, f->index).first->second.first;
    }
    std::string text = "deadlock in " + block_text() + ":";
    for (const auto& [place, count] : places)
        text += " " + std::to_string(count.first) + " thread(s), first " + std::to_string(count.second) +
                ", " + place + ";";
    return text;
}

int Engine::barrier(int predicate, Vote vote, Site site) {
    unsigned phase;
    char* edge;
    {
        Hidden hidden;
        if (arrived_ != 0 && !(site == barrier_site_))
            fail("divergent __syncthreads (others wait at " + barrier_site_.text() + ")", site);
        if (arrived_ == 0) barrier_edge_ = new_edge();
        phase = phase_;
        edge = barrier_edge_;
        barrier_site_ = current_->site = site;
        current_->waits_in = "__syncthreads";
        votes_[0] &= predicate != 0;
        votes_[1] |= predicate != 0;
        votes_[2] += predicate != 0;
    }
    release_edge(edge);
    {
        Hidden hidden;
        if (++arrived_ == threads_) {
            arrived_ = 0;
            phase_ ^= 1;
            std::copy(votes_, votes_ + 3, vote_results_[phase]);
            votes_[0] = 1;
            votes_[1] = votes_[2] = 0;
            for (Fiber* f : by_index_) wake(f);
        }
        park();
    }
    acquire_edge(edge);
    Hidden hidden;
    return vote_results_[phase][static_cast<int>(vote)];
}

Engine::Collective& Engine::join(unsigned mask, const char* what, Site site) {
    const unsigned own = current_->index % 32, left = threads_ - (current_->index - own);
    const unsigned exist = left >= 32 ? ~0u : (1u << left) - 1;
    if ((mask >> own & 1) == 0) fail(std::string(what) + ": the calling lane is not in its own mask", site);
    if ((mask & ~exist) != 0)
        fail(std::string(what) + ": the mask names lanes the block does not have", site);
    auto& open = warps_[current_->index / 32];
    auto c = std::find_if(open.begin(), open.end(), [&](auto& other) { return (other.mask & mask) != 0; });
    if (c == open.end()) c = open.insert(c, {mask, 0, what, site, new_edge()});
    if (c->mask != mask || std::strcmp(c->what, what) != 0 || !(c->site == site))
        fail(std::string(what) + ": other lanes of the mask wait in " + c->what + " at " + c->site.text(),
             site);
    return *c;
}

void Engine::collective(unsigned mask, const char* what, Site site, bool orders_memory, void* slot,
                        void (*complete)(void** slots)) {
    char* edge;
    {
        Hidden hidden;
        Collective& c = join(mask, what, site);
        current_->slot = slot;
        current_->site = site;
        current_->waits_in = what;
        c.arrived |= 1u << current_->index % 32;
        edge = c.edge;
    }
    if (orders_memory) release_edge(edge);
    {
        Hidden hidden;
        auto& open = warps_[current_->index / 32];
        const auto c = std::find_if(open.begin(), open.end(), [&](auto& o) { return o.mask == mask; });
        if (c->arrived == mask) {
            open.erase(c);
            Fiber** lanes = &by_index_[current_->index / 32 * 32];
            void* slots[32];
            for (unsigned i = 0; i < 32; ++i) slots[i] = (mask >> i & 1) != 0 ? lanes[i]->slot : nullptr;
            complete(slots);
            for (unsigned i = 0; i < 32; ++i)
                if ((mask >> i & 1) != 0) wake(lanes[i]);
        }
        park();
    }
    if (orders_memory) acquire_edge(edge);
}

void Engine::fence() {
    Hidden hidden;
    for (void* p : current_->atomics) acquire_edge(p);
    current_->atomics.clear();
    current_->fenced = true;
}

void Engine::atomic(void* address) {
    Hidden hidden;
    if (current_->fenced) release_edge(address);
    current_->atomics.push_back(address);
}

// Each array is a heap block of its exact size, made anew for every CUDA block, so that ASan guards its ends.
// It is filled with 0xFF, which is NaN, so that a read before a write is noticed.
void* Engine::shared_array(const void* key, std::size_t bytes, bool dynamic, Site site) {
    Hidden hidden;
    const auto [it, fresh] = shared_.try_emplace(key, nullptr);
    if (!fresh) return it->second;
    if (!dynamic) shared_bytes_ += bytes;
    if (shared_bytes_ > options.max_static_shared || shared_bytes_ + dynamic_bytes_ > options.max_shared)
        fail("more shared memory than a block may have", site);
    if (posix_memalign(&it->second, 128, bytes != 0 ? bytes : 1) != 0) throw std::bad_alloc();
    std::memset(it->second, 0xFF, bytes);
    return it->second;
}

void Engine::free_shared() {
    for (auto& [key, memory] : shared_) std::free(memory);
    shared_.clear();
}

void Engine::begin_block(std::uint64_t block, dim3 grid, dim3 shape) {
    blockIdx = {unsigned(block % grid.x), unsigned(block / grid.x % grid.y),
                unsigned(block / grid.x / grid.y)};
    finished_ = arrived_ = 0;
    votes_[0] = 1;
    votes_[1] = votes_[2] = 0;
    ready_.clear();
    ready_head_ = 0;
    warps_.resize((threads_ + 31) / 32);
    for (auto& open : warps_) open.clear();
    shared_bytes_ = 0;
    for (unsigned i = 0; i < threads_; ++i) {
        Fiber& f = fibers_[block % sets * (fibers_.size() / sets) + i];
        f.index = i;
        f.done = f.fenced = false;
        f.atomics.clear();
        f.copies.assign(1, {});
        f.thread = {i % shape.x, i / shape.x % shape.y, i / (shape.x * shape.y)};
#ifdef MEZZO_TSAN
        __tsan_set_fiber_name(
            f.tsan, ("CUDA thread " + std::to_string(i) + " of block " + std::to_string(block)).c_str());
#endif
        by_index_[i] = &f;
        wake(&f);
    }
}

void Engine::run_blocks(dim3 grid, dim3 block) {
    const std::uint64_t blocks = std::uint64_t(grid.x) * grid.y * grid.z;
    for (std::uint64_t b = 0; b < blocks && !error_; ++b) {
        begin_block(b, grid, block);
        park();  // returns when nothing can run any more
        if (!error_ && finished_ != threads_) error_ = std::make_exception_ptr(Error(stuck()));
        free_shared();
    }
}

void Engine::run(dim3 grid, dim3 block, std::size_t dynamic, void (*body)(void*), void* argument) {
    if (idle) return;
    const std::lock_guard lock(mutex_);
    threads_ = block.x * block.y * block.z;
    if (threads_ == 0 || threads_ > 1024 || block.z > 64) throw Error("launch: bad block size");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535)
        throw Error("launch: bad grid size");
    if (dynamic > options.max_shared) throw Error("launch: more dynamic shared memory than a block may have");
    device_access(true);
    release_edge(&launch_edge_);
    {
        Hidden hidden;
        make_fibers(threads_);
#ifdef MEZZO_TSAN
        main_.tsan = __tsan_get_current_fiber();
#endif
        main_.stack = nullptr;
        blockDim = block;
        gridDim = grid;
        body_ = body;
        argument_ = argument;
        dynamic_bytes_ = dynamic;
        current_ = &main_;
        random_ = options.schedule * 0x9E3779B97F4A7C15ull + 1;
        by_index_.resize(threads_);
        if (on_run) on_run(device_, false);
        run_blocks(grid, block);
        if (on_run && !error_) on_run(device_, true);
        if (error_) {
            release_abandoned();
            drop_fibers();
        }
    }
    acquire_edge(&done_edge_);
    device_access(false);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Engine::device_access([[maybe_unused]] bool on) {
#ifdef MEZZO_ASAN
    for (const auto& [memory, bytes] : device_)
        on ? __asan_unpoison_memory_region(memory, bytes) : __asan_poison_memory_region(memory, bytes);
#endif
}

void Engine::open_device_memory() {
    mutex_.lock();
    device_access(true);
}

void Engine::close_device_memory() {
    device_access(false);
    mutex_.unlock();
}

void* Engine::device_malloc(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (device_bytes_ + bytes > options.device_memory) return nullptr;
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, bytes != 0 ? bytes : 1) != 0) return nullptr;
    std::memset(memory, 0xFF, bytes);
    device_[static_cast<char*>(memory)] = bytes;
    device_bytes_ += bytes;
    device_access(false);
    return memory;
}

void Engine::device_free(void* memory) {
    const std::lock_guard lock(mutex_);
    if (memory == nullptr) return;
    const auto it = device_.find(static_cast<char*>(memory));
    if (it == device_.end()) throw Error("device_free: not an address device_malloc gave");
    device_access(true);
    device_bytes_ -= it->second;
    device_.erase(it);
    std::free(memory);
    device_access(false);
}

void Engine::device_copy(void* to, const void* from, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    device_access(true);
    std::memmove(to, from, bytes);
    device_access(false);
}

void Engine::device_fill_zero(void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    device_access(true);
    std::memset(memory, 0, bytes);
    device_access(false);
}

}  // namespace mezzo::emulation
