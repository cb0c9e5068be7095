// Numbers of the CUDA devices that this build has kernels for. mezzo counts them from 0 on; CUDA's ordinals also
// count those that are left out (device_absence() says why).
#pragma once

namespace mezzo::cuda {

int ordinal_of(int device);  // CUDA's number of a device; one that is not there stays as it is
int index_of(int ordinal);   // the reverse; -1 for a device that is left out

}  // namespace mezzo::cuda
