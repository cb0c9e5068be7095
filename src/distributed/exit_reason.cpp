#include "distributed/exit_reason.h"

#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>

#include "distributed/control.h"

namespace mezzo::distributed {
namespace {

struct Speaker {
    std::mutex mutex;
    Control* control = nullptr;
    bool installed = false;
    std::terminate_handler before = nullptr;
};
Speaker& speaker() {
    static Speaker* const the = new Speaker;  // leaked: it is used while the process exits
    return *the;
}

std::string reason() {
    const std::exception_ptr error = std::current_exception();
    if (!error) return "std::terminate() was called";
    try {
        std::rethrow_exception(error);
    } catch (const std::exception& e) {
        return e.what();
    } catch (...) {
        return "ended by an exception that nobody caught";
    }
}

void say_why_and_terminate() {
    // A thread that holds the mutex is already ending the group.
    if (speaker().mutex.try_lock()) {
        if (speaker().control != nullptr) speaker().control->failed(reason());
        speaker().mutex.unlock();
    }
    if (speaker().before != nullptr) speaker().before();
    std::abort();
}

void leave() {
    const std::lock_guard lock(speaker().mutex);
    if (speaker().control != nullptr) speaker().control->leave();
}

}  // namespace

void speak_for(Control& control) {
    const std::lock_guard lock(speaker().mutex);
    speaker().control = &control;
    if (speaker().installed) return;
    speaker().installed = true;
    speaker().before = std::set_terminate(say_why_and_terminate);
    std::atexit(leave);
}

void speak_no_more_for(Control& control) noexcept {
    const std::lock_guard lock(speaker().mutex);
    if (speaker().control == &control) speaker().control = nullptr;
}

}  // namespace mezzo::distributed
