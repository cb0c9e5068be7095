// Which sizes of a graph follow from the batch: found by comparing two graphs of the same model.
#pragma once

#include "onnx/graph.h"

namespace mezzo::onnx {

// The nodes that the outputs need, in the order of their making.
Values live_nodes(const Graph& graph, const Values& outputs);

// Of two graphs of one model for batches of different sizes: makes of the first one a graph for all sizes, whose
// reshapes and expansions have no size of the batch any more. Throws Error(value), naming an operator and its module, where
// they differ in anything else.
void free_batch(Graph& graph, const Values& outputs, const Graph& other, const Values& other_outputs);

}  // namespace mezzo::onnx
