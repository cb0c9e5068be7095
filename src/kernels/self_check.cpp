#include "kernels/proof.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <optional>

#include "core/backend.h"
#include "core/build_id.h"
#include "core/step_graph.h"
#include "core/log_line.h"
#include "core/separate_memory.h"
#include "kernels/registry.h"
#include "kernels/verdict_file.h"
#include "mezzo/error.h"
#include "mezzo/version.h"

namespace mezzo {
namespace {

constexpr std::size_t memory_of_a_proof = std::size_t(8) << 20;
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
int slot_of(const Proof& proof) { return slot_of(proof.path, proof.dtype, proof.size); }

std::atomic<Verdict::State> states[device_type_count][max_devices][slots];

std::atomic<Verdict::State>& state_of(Device device, int slot) {
    return states[int(device.type())][device.index][slot];
}

const ProofList* proofs_of(Device device) {
    if (device.index < 0 || device.index >= max_devices) return nullptr;
    const BackendParts* parts = backend_parts(device.type());
    return parts != nullptr ? parts->proofs : nullptr;
}

const Proof* find_proof(const ProofList& list, int slot) {
    for (const Proof& proof : list.all)
        if (slot_of(proof) == slot) return &proof;
    return nullptr;
}

// ---- one self-check

thread_local bool proof_runs = false;

class Proving {
public:
    Proving() { proof_runs = true; }
    ~Proving() { proof_runs = false; }
    Proving(const Proving&) = delete;
    Proving& operator=(const Proving&) = delete;
};

// The reason why the device does not work any more; "" if it does.
std::string failure_of(Device device) {
    try {
        backend_of("proof", device).synchronize(device.index);
    } catch (const std::exception& error) {
        return error.what();
    }
    return "";
}

Verdict with_state_of(Device device, std::string reason) {
    if (const std::string failure = failure_of(device); !failure.empty())
        reason += "; since then the device does nothing for this process any more (" + failure +
                  "): start it again, the next process does not try this";
    return {Verdict::bad, std::move(reason)};
}

// Runs a self-check. The result is open if the attempt says nothing about the fast path.
Verdict try_proof(const ProofList& list, const Proof& proof, Device device) try {
    // Waits for work that the program has queued before. If that fails, it is not the fast path's error.
    if (const std::string failure = failure_of(device); !failure.empty()) return {Verdict::open, failure};
    const Proving scope;
    const SeparateMemory memory(device, memory_of_a_proof);
    list.run(proof, device.index);
    backend_of("proof", device).synchronize(device.index);
    return {Verdict::good, {}};
} catch (const Error& error) {
    if (error.kind() == ErrorKind::memory || error.kind() == ErrorKind::state)
        return {Verdict::open, error.what()};
    return with_state_of(device, error.what());
} catch (const std::bad_alloc&) {
    return {Verdict::open, "the host has no memory"};
} catch (const std::exception& error) {
    return with_state_of(device, error.what());
} catch (...) {
    return with_state_of(device, "an exception of unknown type");
}

// ---- results of a device

struct Book {
    explicit Book(std::string identity) : file(std::move(identity)), verdicts(file.load()) {}
    VerdictFile file;
    Verdicts verdicts;
    std::map<std::string, int> attempts = {};
};

// Guards the books, and changes to states. Held while a self-check runs, so that only one runs at a time.
std::mutex mutex;

std::optional<Book>& book_slot(Device device) {
    static auto& books = *new std::array<std::array<std::optional<Book>, max_devices>, device_type_count>;
    return books[std::size_t(device.type())][std::size_t(device.index)];
}

Book& book_of(const ProofList& list, Device device) {
    std::optional<Book>& book = book_slot(device);
    if (!book)
        book.emplace(
            fmt::format("mezzo {} {}, proofs 1; {}", version(), build_id(), list.identity(device.index)));
    return *book;
}

std::string log_text(const Proof& proof, Device device, const Verdict& verdict) {
    const std::string what =
        fmt::format("fast path {} on {}:{}: ", text_of(proof), name(device.type()), int(device.index));
    return what + (verdict.state == Verdict::good ? "proven" : "not used; " + verdict.reason);
}

constexpr const char* died = "an earlier process ended while it proved this; mezzo-info --prove tries again";

// Runs a self-check and stores the result.
Verdict prove(const ProofList& list, const Proof& proof, Device device, Book& book, bool heeds_marks) {
    const std::string what = text_of(proof);
    const VerdictFile::Mark mark(book.file, what);
    Verdict verdict;
    if (mark.found() && heeds_marks) {
        verdict = book.file.load()[what];  // of a process that has ended the check since
        if (verdict.state == Verdict::open) verdict = {Verdict::bad, died};
    } else {
        verdict = try_proof(list, proof, device);
    }
    book.verdicts[what] = verdict;
    if (verdict.state != Verdict::open) book.file.save(what, verdict);
    state_of(device, slot_of(proof)).store(verdict.state, std::memory_order_release);
    return verdict;
}

// Returns the result for a slot that has none yet in this process, and sets `message` to a line for the log.
Verdict::State decide(const ProofList& list, const Proof& proof, Device device, std::string& message) {
    const std::lock_guard lock(mutex);
    std::atomic<Verdict::State>& state = state_of(device, slot_of(proof));
    if (const Verdict::State known = state.load(std::memory_order_acquire); known != Verdict::open)
        return known;
    if (!list.ready(device.index)) return Verdict::open;
    Book& book = book_of(list, device);
    Verdict verdict = book.verdicts[text_of(proof)];
    if (verdict.state == Verdict::open) {
        verdict = prove(list, proof, device, book, true);
        if (verdict.state == Verdict::open && ++book.attempts[text_of(proof)] == most_attempts) {
            verdict = {Verdict::bad, "there was no proof in this process: " + verdict.reason};
            book.verdicts[text_of(proof)] = verdict;
        }
        if (verdict.state != Verdict::open) message = log_text(proof, device, verdict);
    } else if (verdict.state == Verdict::bad) {
        message = log_text(proof, device, verdict);
    }
    state.store(verdict.state, std::memory_order_release);
    return verdict.state;
}

}  // namespace

bool proving() noexcept { return proof_runs; }

std::string text_of(const Proof& proof) {
    std::string text = fmt::format("{} {}", path_names[int(proof.path)], name(proof.dtype));
    if (proof.size != 0) text += fmt::format(" {}", proof.size);
    return text;
}

bool proven(FastPathId path, Device device, Dtype dtype, int size) noexcept try {
    const int slot = slot_of(path, dtype, size);
    if (slot < 0 || int(device.type()) >= device_type_count || device.index < 0 ||
        device.index >= max_devices)
        return false;
    const Verdict::State known = state_of(device, slot).load(std::memory_order_acquire);
    if (known != Verdict::open) return known == Verdict::good;
    if (proof_runs || StepGraph::capturing() != nullptr) return false;
    const ProofList* list = proofs_of(device);
    const Proof* proof = list != nullptr ? find_proof(*list, slot) : nullptr;
    if (proof == nullptr) {
        state_of(device, slot).store(Verdict::bad, std::memory_order_release);
        return false;
    }
    std::string message;
    const Verdict::State verdict = decide(*list, *proof, device, message);
    if (!message.empty()) log_line(message);
    return verdict == Verdict::good;
} catch (...) {
    return false;
}

std::vector<ListedVerdict> verdicts_of(Device device) {
    std::vector<ListedVerdict> all;
    const ProofList* list = proofs_of(device);
    if (list == nullptr) return all;
    const std::lock_guard lock(mutex);
    Book& book = book_of(*list, device);
    for (const Proof& proof : list->all) all.push_back({proof, book.verdicts[text_of(proof)]});
    return all;
}

void prove_all(Device device) {
    const ProofList* list = proofs_of(device);
    if (list == nullptr) return;
    for (const Proof& proof : list->all) {
        std::string message;
        {
            const std::lock_guard lock(mutex);
            if (!list->ready(device.index)) return;
            message = log_text(proof, device, prove(*list, proof, device, book_of(*list, device), false));
        }
        log_line(message);
    }
}

void forget_verdicts() {
    const std::lock_guard lock(mutex);
    for (auto& of_type : states)
        for (auto& of_device : of_type)
            for (std::atomic<Verdict::State>& state : of_device) state = Verdict::open;
    for (int type = 0; type < device_type_count; ++type)
        for (int index = 0; index < max_devices; ++index) book_slot({DeviceType(type), index}).reset();
}

}  // namespace mezzo
