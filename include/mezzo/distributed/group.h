// Training with several processes: groups of ranks and their collective calls. The guide is
// docs/guide/distributed.md.
//
//   const distributed::Group group = distributed::init();
//   net.to(group.device());
//   group.all_reduce_(x);  // the sum over all ranks
//   if (group.leader()) std::cout << group.size() << " ranks\n";
#pragma once

#include <cstdint>
#include <string>

#include "mezzo/device.h"
#include "mezzo/shard.h"
#include "mezzo/shared.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::distributed {

// Element-wise reduction over the ranks. mean is the sum times 1 / size.
enum class ReduceOp : std::uint8_t { sum, mean, min, max };
[[nodiscard]] const char* name(ReduceOp op);  // "sum", "mean", "min", "max"

struct InitOptions {
    double timeout = 1800;            // seconds that a collective call waits for the other ranks
    double rendezvous_timeout = 300;  // seconds that init() waits until all ranks are there
    // Gives sums of CUDA tensors the same bits in each run: sets NCCL_ALGO=^NVLS,NVLSTree, which excludes the
    // two algorithms whose sums vary, unless that variable is set.
    bool deterministic = false;
};

class [[gnu::visibility("hidden")]] GroupImpl;  // src/distributed/group_impl.h

// The group of all ranks of a program. A handle: copies share one group. When the last copy is destroyed,
// this rank leaves the group, without waiting for other ranks.
//
// All ranks must make collective calls in the same order, with the same shapes and dtypes, from one thread at
// a time per rank. If the ranks' calls differ, all ranks get the same Error(shape), Error(dtype) or
// Error(state), nothing is written, and the group stays usable. If a rank is lost, fails, leaves or does not
// make its call within the timeout, every running and later call throws Error(backend) with the first cause,
// the same on all ranks, and the group is no longer usable. CUDA tensors that such a call was writing to have
// undefined values.
//
// Tensors may be on any device. If every rank's tensors are on its device() and all ranks have NCCL, data
// moves from device to device: the host waits until the other hosts confirm that they make the same call, but
// for no device. Otherwise data moves through host memory. None of the calls is differentiable. In a group of
// one rank they return at once.
class Group {
public:
    explicit Group(GroupImpl* impl);  // for src/distributed; programs call init()
    Group(const Group& other);
    Group& operator=(const Group& other) &;
    ~Group();

    [[nodiscard]] int rank() const;        // 0 to size() - 1
    [[nodiscard]] int size() const;        // number of processes
    [[nodiscard]] int local_rank() const;  // among the processes of this machine
    [[nodiscard]] int local_size() const;
    [[nodiscard]] bool leader() const { return rank() == 0; }
    // cuda:local_rank if there are CUDA devices, else the CPU. If a process sees fewer devices than there are
    // local ranks, devices are assigned round-robin.
    [[nodiscard]] Device device() const;

    // The transport for tensors of device(): "NCCL 2.28.9" once it is connected, by the first call on CUDA
    // tensors; before that, and on the CPU, "shared memory" if all ranks are on one machine, else "Gloo".
    [[nodiscard]] std::string engine() const;

    // This rank's shard of the data, for data::DataLoader.
    [[nodiscard]] data::Shard shard() const;

    // Replaces x by the sum, mean, minimum or maximum over all ranks, element by element, with the same bits
    // on all ranks. 16-bit dtypes are reduced in float32 and rounded once, integers in int64. Error(dtype)
    // for the mean of a dtype that is not floating and for a sum of booleans; Error(state) as for every
    // in-place write.
    void all_reduce_(const Tensor& x, ReduceOp op = ReduceOp::sum) const;
    // Stacks the tensors of all ranks in rank order, on x's device: [size(), ...].
    [[nodiscard]] Tensor all_gather(const Tensor& x) const;
    // Replaces x by root's values. Error(value) unless 0 <= root < size().
    void broadcast_(const Tensor& x, int root = 0) const;
    // The mean over all ranks as a new tensor, for metrics: float32 where x is not floating.
    [[nodiscard]] Tensor mean(const Tensor& x) const;
    // count * size() / (sum of the ranks' counts), 0-dim, float32, on device(): the factor for a loss that is
    // a mean over `count` rows or tokens, so that the mean of the ranks' gradients is the gradient of the
    // mean over all of them. 0 where all counts are 0. Error(value) for a negative count.
    [[nodiscard]] Tensor weight(std::int64_t count) const;

    void barrier() const;  // returns when all ranks have called it
    // Whether `value` is true on all ranks, or on any; the same result on all ranks.
    [[nodiscard]] bool all(bool value) const;
    [[nodiscard]] bool any(bool value) const;

    [[nodiscard]] GroupImpl& impl() const;

private:
    mezzo::detail::SharedHandle<mezzo::detail::SharedObject> impl_;
};

// Joins the group that the environment describes, as set by mezzo-run, torchrun, mpirun of Open MPI or MPICH,
// or Slurm's srun (variables: docs/guide/launching.md). Returns when all ranks have joined. A program that
// was started alone is rank 0 of 1 and opens no socket, thread or library.
//
// Sets the number of threads of the CPU backend: MEZZO_THREADS if that is set; otherwise, in a group of
// several ranks, the processors divided by the ranks that may run on them, at least 1.
//
// Throws Error(value) for options out of range; Error(state) if environment variables are missing (the
// message lists them), and for a second group of several ranks in one process; Error(backend) if ranks do not
// join in time (the message names them), or Gloo is not installed.
[[nodiscard]] Group init(const InitOptions& options = {});

}  // namespace mezzo::distributed

#pragma GCC visibility pop
