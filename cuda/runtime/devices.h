// Maps mezzo's indices of CUDA devices to CUDA's ordinals and back. mezzo counts from 0 the devices that this
// build has kernels for; CUDA's ordinals also count the devices that are left out (device_absence() has the
// reason).
#pragma once

namespace mezzo::cuda {

int ordinal_of(int device);  // CUDA's number of a device; one that is not there stays as it is
int index_of(int ordinal);   // the reverse; -1 for a device that is left out
// Compute capability of a device, times ten; kernel_capability() is that of its kernels. Queries the runtime
// once.
int compute_capability(int device);

}  // namespace mezzo::cuda
