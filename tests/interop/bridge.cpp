// C functions over mezzo's files and DLPack, which the interop tests call by Python's ctypes. Each returns 0,
// or 1 after a failure; error() has its message.
#include <cmath>
#include <cstdint>
#include <exception>
#include <string>

#include "mezzo/interchange/dlpack.h"
#include "mezzo/interchange/numpy.h"
#include "mezzo/interchange/pytorch.h"
#include "mezzo/io.h"
#include "mezzo/ops.h"
#include "mezzo/train/metrics.h"

namespace {

using namespace mezzo;

std::string last_error, last_text;
Tensor held;

template <class F> int guarded(const F& f) {
    try {
        f();
        return 0;
    } catch (const std::exception& error) {
        last_error = error.what();
        return 1;
    }
}

}  // namespace

extern "C" {

const char* error() { return last_error.c_str(); }

// The tensor that the library holds: taken from a struct, changed, exported.
int take_legacy(dlpack::DLManagedTensor* managed) {
    return guarded([&] { held = dlpack::from_dlpack(managed); });
}
int take_versioned(dlpack::DLManagedTensorVersioned* managed) {
    return guarded([&] { held = dlpack::from_dlpack(managed); });
}
int give_legacy(dlpack::DLManagedTensor** managed) {
    return guarded([&] { *managed = dlpack::to_dlpack(held); });
}
int give_versioned(dlpack::DLManagedTensorVersioned** managed) {
    return guarded([&] { *managed = dlpack::to_dlpack_versioned(held); });
}
int double_held() {
    return guarded([&] { held.mul_(2.0); });
}
int drop_held() {
    return guarded([&] { held = Tensor(); });
}

// Reads an array and writes it again.
int copy_npy(const char* from, const char* to) {
    return guarded([&] { io::save_npy(to, io::load_npy(from)); });
}
int copy_npz(const char* from, const char* to, int compressed) {
    return guarded([&] { io::save_npz(to, io::load_npz(from), {.compressed = compressed != 0}); });
}

// Reads a file of torch.save() and writes its tensors to a safetensors file, those in a dict or list, or the
// one tensor that it is as "0".
int copy_pytorch(const char* from, const char* to) {
    return guarded([&] { io::save_safetensors(to, io::load_pytorch(from).state_dict()); });
}
int copy_pytorch_tensor(const char* from, const char* to) {
    return guarded([&] { io::save_safetensors(to, {{"0", io::load_pytorch(from).tensor()}}); });
}
// Describes a file; text() has the description.
int describe_pytorch(const char* from) {
    return guarded([&] { last_text = io::load_pytorch(from).to_string(); });
}
const char* text() { return last_text.c_str(); }

// Writes a run with every kind of record of a SummaryWriter.
int write_run(const char* folder) {
    return guarded([&] {
        io::SummaryWriter writer(folder);
        for (int step = 0; step < 5; ++step) writer.add_scalar("loss", 1.0 / (1 + step), step, 100.0 + step);
        writer.add_scalar("large step", -2.5, std::int64_t(1) << 40);
        writer.add_histogram("weights", Tensor::from({-1, 0, 0, 1, 2, 1e9f}, {6}), 3);
        writer.add_histogram("bad", Tensor::from({1, HUGE_VALF}, {2}), 3);
        writer.add_histogram("none", zeros({0}), 3);
        writer.add_text("note", "**bold** \xc3\xbc", 1);
        writer.add_image("picture", Tensor::from({0, 0.5f, 1, 0.25f, 2, -1}, {1, 2, 3}), 2);
        writer.add_image("grey", full({2, 2, 1}, 7, {.dtype = uint8}), 2);
        writer.log(9, {{"logged", 4}});
    });
}

}  // extern "C"
