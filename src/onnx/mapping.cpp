#include "onnx/mapping.h"

namespace mezzo::onnx {

Mapping mapping_of(std::string_view op) {
    for (const std::span<const MappingOf> family :
         {elementwise_mappings(), shape_mappings(), product_mappings(), norm_mappings(), image_mappings()})
        for (const MappingOf& one : family)
            if (one.op == op) return one.map;
    return nullptr;
}

}  // namespace mezzo::onnx
