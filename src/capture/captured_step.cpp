// CapturedStep: decides which calls run the step eagerly, capture it or replay it, and handles their inputs
// and results.
#include "mezzo/capture.h"

#include <algorithm>
#include <list>
#include <memory>

#include "autograd/autocast_state.h"
#include "capture/capture_consensus.h"
#include "capture/step_graph.h"
#include "core/gradient/gradient_hook.h"

namespace mezzo::cuda {

namespace {

// Properties that the calls of one graph share.
struct Key {
    std::vector<Shape> shapes = {};
    std::vector<Dtype> dtypes = {};
    bool recorded_history = false;
    friend bool operator==(const Key& a, const Key& b) {
        return a.recorded_history == b.recorded_history && a.dtypes == b.dtypes && a.shapes == b.shapes;
    }
};

Key key_of(const Tensors& inputs) {
    Key key{.recorded_history = grad_enabled()};
    for (const Tensor& x : inputs) {
        key.shapes.push_back(x.shape());
        key.dtypes.push_back(x.dtype());
    }
    return key;
}

// Runs the step. The results are detached, so that tensors saved for a backward are released before the step
// ends.
Tensors run(const StepFunction& step, const Tensors& inputs) {
    Tensors results = step(inputs);
    for (Tensor& y : results)
        if (y.defined()) y = y.detach();
    return results;
}

void check_inputs(const Tensors& inputs) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        check(inputs[i].defined(), ErrorKind::value, "CapturedStep: input ", i, " is undefined");
        check(!tracked(inputs[i]), ErrorKind::value, "CapturedStep: input ", i,
              " requires grad, and the step sees a copy; make it require grad inside the step");
    }
    check(!thread_state.autocast.open(), ErrorKind::state,
          "CapturedStep: called inside an Autocast scope; open the scope inside the step, so that its casts "
          "belong to it");
}

// Returns new handles of the same elements, so that a gradient stored in one of them does not appear in the
// next call.
Tensors handles_of(const Tensors& tensors) {
    Tensors handles;
    for (const Tensor& x : tensors) handles.push_back(x.defined() ? alias(x) : Tensor());
    return handles;
}

// Exists while a captured step runs on this thread. A captured step that is called inside of it becomes part
// of it and is not captured itself.
class InsideCall {
public:
    InsideCall() { ++depth; }
    ~InsideCall() { --depth; }
    InsideCall(const InsideCall&) = delete;
    InsideCall& operator=(const InsideCall&) = delete;
    static bool nested() { return depth > 1; }

private:
    static constinit inline thread_local int depth = 0;
};

}  // namespace

// The warm-up and the graph of calls with one key.
struct CapturedShape {
    Key key = {};
    Tensors inputs = {};  // the step's own, on its device
    int warm_runs = 0;
    MemoryPlan plan = {};
    std::unique_ptr<StepGraph> graph = nullptr;
    Tensors results = {};  // of the captured run; each replay overwrites them

    void restart() {
        warm_runs = 0;
        results.clear();
        graph.reset();
    }
};

struct CapturedStepImpl {
    StepFunction step;
    CaptureOptions options;
    std::list<CapturedShape> shapes;  // most recently used first
    ConsensusList members;            // groups and reducers whose ranks take part in the step
    CaptureStatistics counts;

    CapturedShape& shape_of(const Tensors& given);
    Tensors warm_up(CapturedShape& shape);
    Tensors traced(CapturedShape& shape);
    Tensors capture(CapturedShape& shape);
    Tensors replay(CapturedShape& shape);
    StepAction agree(StepAction mine);
    Tensors run_as(StepAction action, CapturedShape& shape);
};

// Returns the least action of this process and all others.
StepAction CapturedStepImpl::agree(StepAction mine) {
    StepAction least = mine;
    for (const auto& member : ConsensusList(members)) least = std::min(least, member->agree(mine));
    return least;
}

Tensors CapturedStepImpl::run_as(StepAction action, CapturedShape& shape) {
    if (action == StepAction::replay) return replay(shape);
    const StepScope scope(members, action == StepAction::record);
    return action == StepAction::record ? capture(shape) : warm_up(shape);
}

CapturedShape& CapturedStepImpl::shape_of(const Tensors& given) {
    const Key key = key_of(given);
    const auto found =
        std::find_if(shapes.begin(), shapes.end(), [&](const CapturedShape& s) { return s.key == key; });
    if (found != shapes.end()) {
        shapes.splice(shapes.begin(), shapes, found);
    } else {
        CapturedShape fresh{.key = key};
        for (const Tensor& x : given)
            fresh.inputs.push_back(empty(x.shape(), {.dtype = x.dtype(), .device = options.device}));
        while (shapes.size() >= static_cast<std::size_t>(options.max_graphs)) shapes.pop_back();
        shapes.push_front(std::move(fresh));
    }
    return shapes.front();
}

Tensors CapturedStepImpl::warm_up(CapturedShape& shape) {
    ++counts.eager_runs;
    Tensors results;
    if (shape.warm_runs + 1 < options.warmup) {
        results = run(step, handles_of(shape.inputs));
    } else {
        results = traced(shape);
    }
    ++shape.warm_runs;
    return results;
}

// Runs the step while tracing allocations, to plan the memory of the capture.
Tensors CapturedStepImpl::traced(CapturedShape& shape) {
    const MemoryTrace trace(options.device);
    PendingHooks pending;  // as in the capture
    Tensors results = run(step, handles_of(shape.inputs));
    pending.apply();
    shape.plan = plan_memory(trace.lifetimes());
    return results;
}

Tensors CapturedStepImpl::capture(CapturedShape& shape) {
    shape.results.clear();
    shape.graph.reset();  // of a step that other ranks must record again
    auto graph = std::make_unique<StepGraph>(options.device, shape.plan);
    shape.warm_runs = 0;  // in case the step throws
    graph->capture([&] { shape.results = run(step, handles_of(shape.inputs)); });
    for (const Tensor& y : shape.results)  // an autograd graph that has saved it must notice the write
        if (y.defined() && graph->owns(y))
            graph->after_replay([y] { y->storage->version.fetch_add(1, std::memory_order_relaxed); });
    ++counts.captures;
    shape.graph = std::move(graph);
    return handles_of(shape.results);
}

Tensors CapturedStepImpl::replay(CapturedShape& shape) {
    shape.graph->replay();
    ++counts.replays;
    return handles_of(shape.results);
}

CapturedStep::CapturedStep(StepFunction step, const CaptureOptions& options) : impl_(nullptr) {
    check(options.warmup >= 1, ErrorKind::value, "CapturedStep: warmup is ", options.warmup,
          "; it must be at least 1");
    check(options.max_graphs >= 1, ErrorKind::value, "CapturedStep: max_graphs is ", options.max_graphs,
          "; it must be at least 1");
    backend_of("CapturedStep", options.device);
    impl_ = new CapturedStepImpl{
        .step = std::move(step), .options = options, .shapes = {}, .members = {}, .counts = {}};
}

CapturedStep::~CapturedStep() { delete impl_; }

Tensors CapturedStep::operator()(const Tensors& inputs) {
    check_inputs(inputs);
    CapturedStepImpl& s = *impl_;
    Tensors given;
    const InsideCall inside;
    if (InsideCall::nested() || backend_of("CapturedStep", s.options.device).begin_capture == nullptr) {
        for (const Tensor& x : inputs) given.push_back(x.to(s.options.device));
        ++s.counts.eager_runs;
        return run(s.step, handles_of(given));
    }
    CapturedShape& shape = s.shape_of(inputs);
    for (std::size_t i = 0; i < inputs.size(); ++i) shape.inputs[i].copy_(inputs[i]);
    if (shape.graph != nullptr && !shape.graph->fits()) shape.restart();
    const StepAction mine = shape.graph != nullptr               ? StepAction::replay
                            : shape.warm_runs < s.options.warmup ? StepAction::eager
                                                                 : StepAction::record;
    return s.run_as(s.agree(mine), shape);
}

CaptureStatistics CapturedStep::statistics() const {
    CaptureStatistics result = impl_->counts;
    for (const CapturedShape& shape : impl_->shapes) {
        if (shape.graph == nullptr) continue;
        ++result.graphs;
        result.planned_bytes += shape.graph->plan().bytes;
        result.live_peak_bytes += shape.graph->plan().live_peak;
    }
    return result;
}

void CapturedStep::clear() { impl_->shapes.clear(); }

}  // namespace mezzo::cuda
