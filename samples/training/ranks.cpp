#include "training/ranks.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace mz = mezzo;

namespace training {

mz::distributed::Group join_ranks(int threads) {
    const mz::distributed::Group group = mz::distributed::init();
    if (threads > 0) mz::set_num_threads(threads);
    if (!group.leader() && std::freopen("/dev/null", "w", stdout) == nullptr)
        throw std::runtime_error(std::string("/dev/null: ") + std::strerror(errno));
    return group;
}

int exit_code_when_stopped() {
    const int signal = mz::training::StopSignals::last();
    return 128 + (signal == 0 ? SIGTERM : signal);
}

}  // namespace training
