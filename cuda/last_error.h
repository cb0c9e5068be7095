// The CUDA runtime's last error, which stays until somebody asks for it.
#pragma once

namespace mezzo::cuda {

// Forgets the error of a call that a library made and reported by itself, so that the check of the next
// launch does not take it for that launch's.
void clear_error() noexcept;

}  // namespace mezzo::cuda
