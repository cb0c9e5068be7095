#include "core/step_recorder.h"

#include "mezzo/error.h"

namespace mezzo {

void refuse_in_capture(const char* op, const char* what) {
    check(thread_state.recorder == nullptr, ErrorKind::state, op, ": a captured step cannot ", what,
          "; do it before or after the call, or run this step without a capture");
}

void refuse_in_capture(const char* op, Device device, const char* what) {
    if (const StepRecorder* recorder = thread_state.recorder;
        recorder != nullptr && recorder->device() == device)
        refuse_in_capture(op, what);
}

}  // namespace mezzo
