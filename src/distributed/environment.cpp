#include "distributed/environment.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "mezzo/error.h"

namespace mezzo::distributed {
namespace {

constexpr int default_port = 29500;
constexpr int ports_tried = 17;  // the port itself may be taken: torchrun's agent listens there
constexpr int most_ranks = 1 << 16;

// Names of the four variables that a launcher sets.
struct Set {
    const char* launcher;
    const char *rank, *size, *local_rank, *local_size;
};
constexpr Set sets[] = {
    {"torchrun or mezzo-run", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"},
};
constexpr const Set& slurm = sets[3];

int parse_number(const char* op, const char* name, const std::string& value, int low, int high) {
    int result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    check(error == std::errc() && end == value.data() + value.size() && result >= low && result <= high,
          ErrorKind::value, op, ": ", name, "=", value, "; it must be a whole number from ", low, " to ",
          high);
    return result;
}

class Reader {
public:
    explicit Reader(const Variables& variables) : variables_(variables) {}

    std::string text(const char* name) const {
        const char* const value = variables_(name);
        return value != nullptr ? value : "";
    }
    bool has(const char* name) const { return !text(name).empty(); }
    int number(const char* name, int low, int high) const {
        return parse_number("init", name, text(name), low, high);
    }

private:
    const Variables& variables_;
};

// Whether the launcher has started this process: a shell in a Slurm allocation has SLURM_PROCID without srun.
bool is_started_by(const Set& set, const Reader& read) {
    return &set != &slurm || read.has("SLURM_STEP_NODELIST");
}

std::vector<const char*> missing_of(const Set& set, const Reader& read) {
    std::vector<const char*> missing;
    for (const char* const name : {set.rank, set.size, set.local_rank, set.local_size})
        if (!read.has(name)) missing.push_back(name);
    return missing;
}

// Parses Slurm's list: "2(x3),1" is 2 tasks on each of the first three nodes, 1 on the fourth.
int tasks_on_node(const std::string& list, int node) {
    for (std::size_t at = 0; at < list.size();) {
        const std::size_t end = std::min(list.find(',', at), list.size());
        const std::string part = list.substr(at, end - at);
        const std::size_t times = part.find("(x");
        int tasks = 0, nodes = 1;
        std::from_chars(part.data(), part.data() + std::min(times, part.size()), tasks);
        if (times != std::string::npos)
            std::from_chars(part.data() + times + 2, part.data() + part.size(), nodes);
        if (node < nodes && tasks > 0) return tasks;
        node -= nodes;
        at = end + 1;
    }
    fail(ErrorKind::value, "init: SLURM_STEP_TASKS_PER_NODE=", list,
         " does not say how many tasks run on this node");
}

RankInfo place_of(const Set& set, const Reader& read) {
    RankInfo place;
    place.size = read.number(set.size, 1, most_ranks);
    place.rank = read.number(set.rank, 0, place.size - 1);
    place.local_size =
        &set == &slurm
            ? tasks_on_node(read.text(set.local_size),
                            read.has("SLURM_NODEID") ? read.number("SLURM_NODEID", 0, most_ranks) : 0)
            : read.number(set.local_size, 1, place.size);
    place.local_rank = read.number(set.local_rank, 0, place.local_size - 1);
    return place;
}

// Returns text that distinguishes this run from others, as far as the launcher provides it.
std::string run_of(const Reader& read, const RankInfo& place) {
    if (read.has("MEZZO_RUN_ID")) return read.text("MEZZO_RUN_ID");
    std::string run;
    for (const char* const name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "PMIX_NAMESPACE",
                                   "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"})
        if (read.has(name)) run += std::string(run.empty() ? "" : " ") + name + "=" + read.text(name);
    // All processes of one mpirun on one machine have one parent.
    if (run.empty() && place.local_size == place.size && read.has("PMI_RANK"))
        run = "parent " + std::to_string(getppid());
    return run;
}

// Parses host:port; an IPv6 address is in brackets.
void read_address(const std::string& text, Launch& launch) {
    const std::size_t colon = text.rfind(':');
    int port = 0;
    const auto [end, error] = colon == std::string::npos
                                  ? std::from_chars_result{nullptr, std::errc::invalid_argument}
                                  : std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
    check(error == std::errc() && end == text.data() + text.size() && port >= 1 && port <= 65535 && colon > 0,
          ErrorKind::value, "init: MEZZO_RENDEZVOUS=", text, "; it must be host:port");
    launch.host = text.substr(0, colon);
    if (launch.host.starts_with('[') && launch.host.ends_with(']'))
        launch.host = launch.host.substr(1, launch.host.size() - 2);
    launch.first_port = port;
}

int slurm_port(const Reader& read) {
    long job = 0;
    const std::string text = read.text("SLURM_JOB_ID");
    std::from_chars(text.data(), text.data() + text.size(), job);
    return 20000 + static_cast<int>(job % 10000);
}

void find_address(const Set& set, const Reader& read, Launch& launch) {
    launch.launcher_holds_store = read.text("MEZZO_STORE") == "launcher";
    if (read.has("MEZZO_RENDEZVOUS")) return read_address(read.text("MEZZO_RENDEZVOUS"), launch);
    // without a name only the port distinguishes runs
    launch.ports = launch.run.empty() ? 1 : ports_tried;
    launch.first_port = read.has("MASTER_PORT") ? read.number("MASTER_PORT", 1, 65535 - ports_tried)
                        : &set == &slurm        ? slurm_port(read)
                                                : default_port;
    if (read.text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
        ++launch.first_port;
        if (launch.ports > 1) --launch.ports;
    }
    launch.host = read.text("MASTER_ADDR");
    if (launch.host.empty() && &set == &slurm) launch.host = first_host(read.text("SLURM_STEP_NODELIST"));
    if (launch.host.empty() && launch.place.local_size == launch.place.size) launch.host = "127.0.0.1";
    check(!launch.host.empty(), ErrorKind::state, "init: ", launch.place.size,
          " ranks on several machines, and nothing says where rank 0 is; set MASTER_ADDR (and MASTER_PORT) "
          "or MEZZO_RENDEZVOUS=host:port");
}

}  // namespace

std::string first_host(const std::string& list) {
    const std::size_t bracket = list.find('['), comma = list.find(',');
    if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
    const std::size_t close = std::min(list.find(']', bracket), list.size());
    const std::size_t end = std::min(list.find_first_of(",-]", bracket), close);
    const std::size_t behind = std::min(list.find(',', close), list.size());
    return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) +
           (close < list.size() ? list.substr(close + 1, behind - close - 1) : "");
}

int number_or_0(const char* op, const Variables& variables, const char* name, int high) {
    const std::string value = Reader(variables).text(name);
    return value.empty() ? 0 : parse_number(op, name, value, 1, high);
}

std::optional<Launch> read_environment(const Variables& variables) {
    const Reader read(variables);
    std::string half;
    for (const Set& set : sets) {
        if (!is_started_by(set, read)) continue;
        const std::vector<const char*> missing = missing_of(set, read);
        if (missing.size() == 4) continue;
        if (missing.empty()) {
            Launch launch;
            launch.place = place_of(set, read);
            if (launch.place.size == 1) return launch;
            launch.run = run_of(read, launch.place);
            find_address(set, read, launch);
            return launch;
        }
        half += std::string(half.empty() ? "" : "; ") + "of " + set.launcher + "'s variables ";
        for (const char* const name : missing)
            half += std::string(name == missing.front() ? "" : ", ") + name;
        half += missing.size() == 1 ? " is missing" : " are missing";
    }
    check(half.empty(), ErrorKind::state, "init: half an environment: ", half,
          "; set them all, or none to be alone");
    return {};
}

}  // namespace mezzo::distributed
