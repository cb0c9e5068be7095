// Clears the CUDA runtime's last error, which otherwise stays until it is read.
#pragma once

namespace mezzo::cuda {

// Clears the error of a call that a library made and reported by itself, so that the check of the next launch
// does not report it.
void clear_error() noexcept;

}  // namespace mezzo::cuda
