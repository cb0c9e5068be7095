#include "kernels/self_check.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <optional>

#include "core/backend.h"
#include "core/memory/memory_hook.h"
#include "core/scoped_value.h"
#include "core/step_recorder.h"
#include "core/system/build_id.h"
#include "core/system/log_line.h"
#include "kernels/registry.h"
#include "mezzo/error.h"
#include "mezzo/version.h"

namespace mezzo {
namespace {

constexpr std::size_t memory_of_a_self_check = std::size_t(8) << 20;
// Number of times that a process tries a self-check which ends without a result, for lack of memory.
constexpr int most_attempts = 3;

constexpr const char* path_names[fast_path_count] = {"flash_attention",
                                                     "flash_attention_grad",
                                                     "implicit_convolution",
                                                     "implicit_convolution_input_grad",
                                                     "implicit_convolution_weight_grad",
                                                     "bias_gradients",
                                                     "layers",
                                                     "relu_masks",
                                                     "prefetch"};

// ---- table of results

constexpr int max_devices = 64, slots_per_path = 16, slots = fast_path_count * slots_per_path;

int dtype_slot(Dtype dtype) {
    return dtype == float32 ? 0 : dtype == float16 ? 1 : dtype == bfloat16 ? 2 : dtype == float64 ? 3 : -1;
}
int size_slot(int size) { return size == 0 ? 0 : size == 32 ? 1 : size == 64 ? 2 : size == 128 ? 3 : -1; }

// Index of a self-check in the table; -1 if there is none for this dtype and size.
int slot_of(FastPathId path, Dtype dtype, int size) {
    const int of_dtype = dtype_slot(dtype), of_size = size_slot(size);
    return of_dtype < 0 || of_size < 0 ? -1 : int(path) * slots_per_path + of_dtype * 4 + of_size;
}
int slot_of(const SelfCheck& self_check) {
    return slot_of(self_check.path, self_check.dtype, self_check.size);
}

std::atomic<CheckResult::State> states[device_type_count][max_devices][slots];

std::atomic<CheckResult::State>& state_of(Device device, int slot) {
    return states[int(device.type())][device.index][slot];
}

const SelfChecks* self_checks_of(Device device) {
    if (device.index < 0 || device.index >= max_devices) return nullptr;
    const BackendParts* parts = backend_parts(device.type());
    return parts != nullptr ? parts->self_checks : nullptr;
}

const SelfCheck* find_self_check(const SelfChecks& list, int slot) {
    for (const SelfCheck& self_check : list.all)
        if (slot_of(self_check) == slot) return &self_check;
    return nullptr;
}

// ---- one self-check

// A piece of memory of the system's. While it exists, this thread's allocations on the device come from it,
// invisible to memory statistics and to the memory plan of a captured step. Nothing of it may outlive it.
class SeparateMemory final : public MemoryHook {
public:
    SeparateMemory(Device device, std::size_t bytes)
        : MemoryHook(device), backend_(backend_of("allocate", device)), bytes_(bytes) {
        check(allocator(device).has_room(bytes), ErrorKind::memory, "allocate: the memory limit leaves no ",
              bytes, " bytes");
        memory_ = static_cast<char*>(backend_.allocate(device.index, bytes));
        check(memory_ != nullptr, ErrorKind::memory, "allocate: ", device, " has no ", bytes, " bytes left");
    }
    ~SeparateMemory() override {
        try {
            backend_.release(device_.index, memory_);
        } catch (...) {  // the device has failed, and the next call throws
        }
    }
    // Memory is not reused, so that late or out-of-bounds writes of one kernel do not corrupt the tensors of
    // another.
    Block* allocate(std::size_t bytes) override {
        const std::size_t size = block_size(bytes);
        check(size <= bytes_ - used_, ErrorKind::memory, "allocate: ", bytes, " bytes are more than the ",
              bytes_ - used_, " that are left of separate memory");
        auto* block = new Block;
        block->address = memory_ + used_;
        block->size = size;
        used_ += size;
        return block;
    }
    bool keeps(Block*) noexcept override { return false; }

private:
    const Backend& backend_;
    const std::size_t bytes_;
    char* memory_ = nullptr;
    std::size_t used_ = 0;
};

thread_local bool self_check_runs = false;

// The reason why the device does not work any more; "" if it does.
std::string failure_of(Device device) {
    try {
        backend_of("self-check", device).synchronize(device.index);
    } catch (const std::exception& error) {
        return error.what();
    }
    return "";
}

CheckResult with_state_of(Device device, std::string reason) {
    if (const std::string failure = failure_of(device); !failure.empty())
        reason += "; since then the device does nothing for this process any more (" + failure +
                  "): start it again, the next process does not try this";
    return {CheckResult::bad, std::move(reason)};
}

// Runs a self-check. The result is open if the attempt says nothing about the fast path.
CheckResult try_self_check(const SelfChecks& list, const SelfCheck& self_check, Device device) try {
    // Waits for work that the program has queued before. If that fails, it is not the fast path's error.
    if (const std::string failure = failure_of(device); !failure.empty()) return {CheckResult::open, failure};
    const ScopedValue running(self_check_runs, true);
    const SeparateMemory memory(device, memory_of_a_self_check);
    list.run(self_check, device.index);
    backend_of("self-check", device).synchronize(device.index);
    return {CheckResult::good, {}};
} catch (const Error& error) {
    if (error.kind() == ErrorKind::memory || error.kind() == ErrorKind::state)
        return {CheckResult::open, error.what()};
    return with_state_of(device, error.what());
} catch (const std::bad_alloc&) {
    return {CheckResult::open, "the host has no memory"};
} catch (const std::exception& error) {
    return with_state_of(device, error.what());
} catch (...) {
    return with_state_of(device, "an exception of unknown type");
}

// ---- results of a device

struct Book {
    explicit Book(std::string identity) : file("fast-paths", std::move(identity)) {
        for (const auto& [self_check, text] : file.load()) results[self_check] = check_result_of(text);
    }
    ChoiceFile file;
    std::map<std::string, CheckResult> results = {};  // by text_of(self_check)
    std::map<std::string, int> attempts = {};
};

// Guards the books, and changes to states. Held while a self-check runs, so that only one runs at a time.
std::mutex mutex;

std::optional<Book>& book_slot(Device device) {
    static auto& books = *new std::array<std::array<std::optional<Book>, max_devices>, device_type_count>;
    return books[std::size_t(device.type())][std::size_t(device.index)];
}

Book& book_of(const SelfChecks& list, Device device) {
    std::optional<Book>& book = book_slot(device);
    if (!book)
        book.emplace(fmt::format("mezzo {} {}, self-checks 2; {}", version(), build_id(),
                                 list.identity(device.index)));
    return *book;
}

std::string log_text(const SelfCheck& self_check, Device device, const CheckResult& result) {
    const std::string what =
        fmt::format("fast path {} on {}:{}: ", text_of(self_check), name(device.type()), int(device.index));
    return what + text_of(result);
}

// Runs a self-check and stores the result. again: also one that has a result, or has ended a process.
CheckResult run_self_check(const SelfChecks& list, const SelfCheck& self_check, Device device, Book& book,
                           bool again) {
    const std::string what = text_of(self_check);
    const CheckResult result =
        book.file.check(what, again, [&] { return try_self_check(list, self_check, device); });
    book.results[what] = result;
    state_of(device, slot_of(self_check)).store(result.state, std::memory_order_release);
    return result;
}

// Returns the result for a slot that has none yet in this process, and sets `message` to a line for the log.
CheckResult::State decide(const SelfChecks& list, const SelfCheck& self_check, Device device,
                          std::string& message) {
    const std::lock_guard lock(mutex);
    std::atomic<CheckResult::State>& state = state_of(device, slot_of(self_check));
    if (const CheckResult::State known = state.load(std::memory_order_acquire); known != CheckResult::open)
        return known;
    if (!list.ready(device.index)) return CheckResult::open;
    Book& book = book_of(list, device);
    CheckResult result = book.results[text_of(self_check)];
    if (result.state == CheckResult::open) {
        result = run_self_check(list, self_check, device, book, false);
        if (result.state == CheckResult::open && ++book.attempts[text_of(self_check)] == most_attempts) {
            result = {CheckResult::bad, "the self-check gave no result in this process: " + result.reason};
            book.results[text_of(self_check)] = result;
        }
        if (result.state != CheckResult::open) message = log_text(self_check, device, result);
    } else if (result.state == CheckResult::bad) {
        message = log_text(self_check, device, result);
    }
    state.store(result.state, std::memory_order_release);
    return result.state;
}

}  // namespace

bool in_self_check() noexcept { return self_check_runs; }

std::string text_of(const SelfCheck& self_check) {
    std::string text = fmt::format("{} {}", path_names[int(self_check.path)], name(self_check.dtype));
    if (self_check.size != 0) text += fmt::format(" {}", self_check.size);
    return text;
}

bool passes_self_check(FastPathId path, Device device, Dtype dtype, int size) noexcept try {
    const int slot = slot_of(path, dtype, size);
    if (slot < 0 || int(device.type()) >= device_type_count || device.index < 0 ||
        device.index >= max_devices)
        return false;
    const CheckResult::State known = state_of(device, slot).load(std::memory_order_acquire);
    if (known != CheckResult::open) return known == CheckResult::good;
    if (self_check_runs || thread_state.recorder != nullptr) return false;
    const SelfChecks* list = self_checks_of(device);
    const SelfCheck* self_check = list != nullptr ? find_self_check(*list, slot) : nullptr;
    if (self_check == nullptr) {
        state_of(device, slot).store(CheckResult::bad, std::memory_order_release);
        return false;
    }
    std::string message;
    const CheckResult::State result = decide(*list, *self_check, device, message);
    if (!message.empty()) log_line(message);
    return result == CheckResult::good;
} catch (...) {
    return false;
}

std::vector<ListedCheckResult> check_results_of(Device device) {
    std::vector<ListedCheckResult> all;
    const SelfChecks* list = self_checks_of(device);
    if (list == nullptr) return all;
    const std::lock_guard lock(mutex);
    Book& book = book_of(*list, device);
    for (const SelfCheck& self_check : list->all)
        all.push_back({self_check, book.results[text_of(self_check)]});
    return all;
}

void run_self_checks(Device device) {
    const SelfChecks* list = self_checks_of(device);
    if (list == nullptr) return;
    for (const SelfCheck& self_check : list->all) {
        std::string message;
        {
            const std::lock_guard lock(mutex);
            if (!list->ready(device.index)) return;
            message = log_text(self_check, device,
                               run_self_check(*list, self_check, device, book_of(*list, device), true));
        }
        log_line(message);
    }
}

void forget_check_results() {
    const std::lock_guard lock(mutex);
    for (auto& of_type : states)
        for (auto& of_device : of_type)
            for (std::atomic<CheckResult::State>& state : of_device) state = CheckResult::open;
    for (int type = 0; type < device_type_count; ++type)
        for (int index = 0; index < max_devices; ++index) book_slot({DeviceType(type), index}).reset();
}

}  // namespace mezzo
