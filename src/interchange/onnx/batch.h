// Finds the sizes of a graph that are multiples of the batch size, by comparing two graphs of the same model.
#pragma once

#include "interchange/onnx/graph.h"

namespace mezzo::onnx {

// Returns the nodes that the outputs need, in the order of their creation.
Values live_nodes(const Graph& graph, const Values& outputs);

// Turns the first of two graphs of one model, traced with different batch sizes, into a graph for any batch
// size: sizes and constants that depend on the batch become multiples of it (Entry::of_batch). Throws
// Error(value), with the op and its module, if the graphs differ in anything else.
void free_batch(Graph& graph, const Values& outputs, const Graph& other, const Values& other_outputs);

}  // namespace mezzo::onnx
