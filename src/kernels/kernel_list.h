// A backend's lists of kernels as constants. In the file of some kernels, and in the backend's own:
//   constinit const KernelList norm_list = kernel_list<layer_norm, layer_norm_grad>;
//   const BackendParts parts{.kernels = lists_of<norm_list, loss_list>};
#pragma once

#include "kernels/kernel.h"

namespace mezzo {

template <auto*... kernels>
MEZZO_HIDDEN inline constexpr KernelEntry kernel_list[] = {kernel_entry<kernels>()...};

template <const KernelList&... lists>
MEZZO_HIDDEN inline constexpr const KernelList* lists_of[] = {&lists...};

}  // namespace mezzo
