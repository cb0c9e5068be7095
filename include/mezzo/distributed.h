// Several processes that train together: groups of ranks and what they exchange. docs/distributed.md is the guide.
#pragma once

#include <cstdint>
#include <string>

#include "mezzo/device.h"
#include "mezzo/shard.h"
#include "mezzo/shared.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::distributed {

// mean is the sum times 1 / size.
enum class ReduceOp : std::uint8_t { sum, mean, min, max };
[[nodiscard]] const char* name(ReduceOp op);  // "sum", "mean", "min", "max"

struct InitOptions {
    double timeout = 1800;            // seconds that a collective call waits for the other ranks
    double rendezvous_timeout = 300;  // seconds that init() waits until all ranks are there
    // Sums of CUDA tensors have the same bits in each run: NCCL leaves out NVLS and NVLSTree, whose sums have not. It sets
    // NCCL_ALGO=^NVLS,NVLSTree, unless that variable is set.
    bool deterministic = false;
};

class [[gnu::visibility("hidden")]] GroupImpl;  // src/distributed/group_impl.h

// The ranks of a program, as one of them sees it. A handle: copies share one group. When the last one is dropped, this rank has left; that
// waits for no other rank.
//
// Collective calls must be made by all ranks in the same order, with the same shapes and dtypes, each rank's from one thread at a
// time. Where the ranks' calls differ, all ranks get the same Error(shape), Error(dtype) or Error(state), nothing is written, and the group can go on.
// Once a rank is lost, has failed, has left or has not come within the timeout, every call, present and future, throws
// Error(backend) with the first cause, the same on all ranks, and the group is of no more use. CUDA tensors that a call was writing to hold any values then.
//
// Tensors may be on any device. Where those of all ranks are on their device() and all have NCCL, they travel from device to device: the host waits for the
// other hosts' word that they make the same call, and for no device. Otherwise they travel through host memory. None of the calls is differentiable. In a group of one rank they return at once.
class Group {
public:
    explicit Group(GroupImpl* impl);  // src/distributed makes them; init() is for programs
    Group(const Group& other);
    Group& operator=(const Group& other) &;
    ~Group();

    [[nodiscard]] int rank() const;        // 0 to size() - 1
    [[nodiscard]] int size() const;        // number of processes
    [[nodiscard]] int local_rank() const;  // among the processes of this machine
    [[nodiscard]] int local_size() const;
    [[nodiscard]] bool leader() const { return rank() == 0; }
    // cuda:local_rank if there are CUDA devices, else the CPU. Where a process sees fewer devices than there are local ranks, they
    // are dealt out in turn.
    [[nodiscard]] Device device() const;

    // What tensors of device() travel by: "NCCL 2.28.9" once it is connected, which the first call on CUDA tensors does; else the engine for host
    // memory: "shared memory" where all ranks are on one machine, else "Gloo".
    [[nodiscard]] std::string engine() const;

    // This rank's part of the data, for data::DataLoader.
    [[nodiscard]] data::Shard shard() const;

    // Replaces x by the sum, mean, minimum or maximum over all ranks, element by element, with the same bits on all ranks. 16-bit
    // dtypes are reduced in float32 and rounded once, integers in int64. Error(dtype) for the mean of a dtype that is not
    // floating and for a sum of booleans; Error(state) as for every write in place.
    void all_reduce_(const Tensor& x, ReduceOp op = ReduceOp::sum) const;
    // The ranks' tensors in the order of the ranks, on x's device: [size(), ...].
    [[nodiscard]] Tensor all_gather(const Tensor& x) const;
    // Replaces x by root's values. Error(value) unless 0 <= root < size().
    void broadcast_(const Tensor& x, int root = 0) const;
    // The mean over all ranks as a new tensor, for metrics: float32 where x is not floating.
    [[nodiscard]] Tensor mean(const Tensor& x) const;
    // count * size() / (sum of the ranks' counts), 0-dim, float32, on device(): the factor for a loss that is a mean over `count` rows
    // or tokens, so that the mean of the ranks' gradients is the gradient of the mean over all of them. 0 where all counts are 0.
    // Error(value) for a negative count.
    [[nodiscard]] Tensor weight(std::int64_t count) const;

    void barrier() const;  // returns when all ranks have called it
    // The same answer on all ranks: whether all of them, or any, say true.
    [[nodiscard]] bool all(bool value) const;
    [[nodiscard]] bool any(bool value) const;

    [[nodiscard]] GroupImpl& impl() const;

private:
    mezzo::detail::SharedHandle<mezzo::detail::SharedObject> impl_;
};

// The group that the environment describes: that of mezzo-run, torchrun, Open MPI's or MPICH's mpirun, or Slurm's srun
// (docs/distributed.md has the variables). It returns when all ranks are there. A program that was started alone is rank 0 of 1, and nothing is
// opened: no socket, no thread, no library.
//
// In a group of several ranks the CPU backend gets as many threads as there are processors for each of the ranks that may run on the same ones, at
// least one; in any group it gets MEZZO_THREADS if that is set.
//
// Error(value) for options out of range; Error(state) for half an environment, with what is missing, and for a second group of several ranks in
// one process; Error(backend) where the ranks do not come together in time, with the names of those that did not come, or Gloo is not there.
[[nodiscard]] Group init(const InitOptions& options = {});

}  // namespace mezzo::distributed

#pragma GCC visibility pop
