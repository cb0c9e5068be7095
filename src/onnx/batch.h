// Which sizes of a graph follow from the batch: found by comparing two graphs of the same model.
#pragma once

#include "onnx/graph.h"

namespace mezzo::onnx {

// The nodes that the outputs need, in the order of their making.
Values live_nodes(const Graph& graph, const Values& outputs);

// Turns the first of two graphs, which are of one model for different sizes of the batch, into a graph
// for all sizes: sizes and constants that follow from the batch become multiples of it (Entry::of_batch).
// Throws Error(value), naming an op and its module, where the graphs differ in anything else.
void free_batch(Graph& graph, const Values& outputs, const Graph& other, const Values& other_outputs);

}  // namespace mezzo::onnx
