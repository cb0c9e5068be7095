// Averages the gradients of a module's parameters over the ranks while backward runs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "capture/capture_consensus.h"
#include "core/gradient/gradient_slot.h"
#include "distributed/backward_observer.h"
#include "distributed/bucket.h"
#include "distributed/gradient_readiness.h"
#include "distributed/group_impl.h"
#include "distributed/mean.h"
#include "mezzo/distributed/data_parallel.h"

namespace mezzo::distributed {

class Reducer final : public BackwardObserver {
public:
    Reducer(const StateDict& parameters, const Group& group, const DataParallelOptions& options);

    // Registers as the hook of the parameters' gradients. Throws Error(value) if a parameter already has one.
    void attach();
    // Removes the hooks. Waits for reductions in progress; with wait = false their gradients are dropped.
    void detach(bool wait) noexcept;

    void enter_local() { ++local_scopes_; }
    void leave_local() { --local_scopes_; }
    // Reduces all gradients, after a backward.
    void reduce();
    std::vector<std::vector<std::string>> names_by_bucket() const;
    // Agrees with the other ranks on a call of a captured step.
    StepAction agree_on_step(StepAction mine);

    // GradientHook
    void settle(std::uint32_t place) override;
    void complete(std::uint32_t place) override;
    void adding(std::uint32_t place) override;
    Tensor bucket_view(std::uint32_t place) override;
    bool is_bucket_view(std::uint32_t place, const Tensor& gradient) const override;
    ReducedStates reduced_states(std::uint32_t place) override;
    void reduce_max(const Tensor& x) override { group_.all_reduce_(x, ReduceOp::max); }
    // BackwardObserver
    std::uint64_t number() const override { return number_; }
    void begin(const BackwardPlan& plan) override;
    void finished(std::uint32_t place) override;
    void opaque_begins(std::size_t number) override { arrivals_.opaque_begins(number); }
    void opaque_finished(std::size_t number) override;
    void end() override;
    void abandon(std::string_view words) noexcept override;

private:
    enum class Phase : std::uint8_t { idle, local, reducing };  // of the running backward
    struct Shipment {
        std::unique_ptr<Bucket> bucket;
        Tensor values = {};        // the elements that are being reduced
        std::uint64_t ticket = 0;  // 0: not in progress
        bool in_graph = false;     // it is in progress in a step that is being captured
        // On a device: the stream hand-off to its communication stream and back, and scratch memory for the
        // mean.
        std::shared_ptr<DevicePassage> passage = {};
        Tensor scratch = {};
        std::vector<bool> with_state = {};  // at the last reduction, by part: LeafState that is reduced
        // Result of the last reduction, written on the communication thread.
        std::shared_ptr<ReducedStates> states = std::make_shared<ReducedStates>(ReducedStates::none);
        bool under_way() const { return ticket != 0 || in_graph; }
        std::size_t missing = 0;  // parts that are not ready yet in this backward
    };
    struct Where {
        int bucket = -1;  // -1: the parameter is frozen
        std::size_t part = 0;
    };

    GradientSlot& slot(std::uint32_t place) const { return leaves_[place]->grads().gradient; }
    void require_unbroken() const;
    std::vector<LeafKind> kinds() const;
    bool layout_fits() const { return !shipments_.empty() && kinds() == kinds_; }
    void make_layout(const std::vector<std::uint32_t>& order);
    void forget_layout();
    void refuse_unused() const;
    void refuse_unless(const std::function<bool(std::uint32_t place)>& used) const;
    bool has_left(std::uint32_t place) const;  // in the running backward
    void arrived(const std::vector<std::uint32_t>& places);
    void depart_next();
    GroupImpl::Work mean_of(std::size_t bucket) const;
    MeanOptions how() const { return {group_.size(), options_.wire, options_.ordered}; }
    bool suits_device_engine() const;
    void connect_device_engine();
    void require_capturable() const;
    void compare_parameters();
    void note_capture();
    void depart_all();
    void finish();
    void collect(Shipment& shipment);
    void collect_all();
    void unpack(Shipment& shipment);
    void give_up(std::string_view words) noexcept;
    void keep_memory() noexcept;
    void lose_all() noexcept;
    bool held(const Shipment& shipment) const;

    const Group group_;
    const DataParallelOptions options_;
    std::vector<std::string> names_;
    Tensors leaves_;
    std::vector<LeafKind> kinds_;  // when the layout was made
    std::vector<Shipment> shipments_;
    std::shared_ptr<DeviceCollectives> engine_;  // for this layout; null: buckets go through host memory
    std::uint64_t layouts_ = 0;                  // counts layouts that were made or forgotten
    std::weak_ptr<CaptureConsensus> consensus_;
    std::vector<Where> where_;  // by index of the leaf
    Arrivals arrivals_;
    Phase phase_ = Phase::idle;
    std::size_t departed_ = 0;  // shipments of this backward that have been submitted
    // number of the group's last call when this object was attached; the same on all ranks
    std::uint64_t number_ = 0;
    bool overlap_ = true;       // in this backward
    bool late_layout_ = false;  // the layout is made at the end of this backward
    bool pending_ = false;      // some gradients have not been reduced yet
    int local_scopes_ = 0;
    std::int64_t reductions_ = 0;  // counts reductions that have begun
    std::string cause_;            // why no reduction is possible any more
};

}  // namespace mezzo::distributed
