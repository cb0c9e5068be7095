#include "tools/mezzo_run/ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

extern char** environ;

namespace mezzo_run {
namespace {

constexpr std::size_t longest_line = std::size_t{1} << 16;  // longer lines are split

struct Pipe {
    int read = -1, write = -1;
};

Pipe make_pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        throw std::runtime_error(fmt::format("no pipe: {}", std::strerror(errno)));
    return {ends[0], ends[1]};
}

std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> result;
    for (std::string& word : words) result.push_back(word.data());
    result.push_back(nullptr);
    return result;
}

// Returns the environment, with the rank's variables replacing those of the same name.
std::vector<std::string> environment(const Command& command) {
    std::vector<std::string> all;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text = *entry;
        bool replaced = false;
        for (const auto& variable : command.variables)
            replaced = replaced || text.starts_with(variable.first + "=");
        if (!replaced) all.push_back(text);
    }
    for (const auto& variable : command.variables) all.push_back(variable.first + "=" + variable.second);
    return all;
}

// Runs between fork() and exec(), so it only makes calls that are safe there; all arguments have been
// prepared.
[[noreturn]] void become(char* const* words, char** variables, const Pipe& output, const Pipe& errors,
                         const Pipe& failure) {
    setpgid(0, 0);
    const int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, 0);
    dup2(output.write, 1);
    dup2(errors.write, 2);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGPIPE}) signal(number, SIG_DFL);
    environ = variables;
    execvp(words[0], words);
    const int reason = errno;
    static_cast<void>(!write(failure.write, &reason, sizeof reason));
    _exit(127);
}

}  // namespace

void PrefixedOutput::copy() {
    char buffer[1 << 14];
    const ssize_t got = read(pipe_, buffer, sizeof buffer);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got > 0) {
        text_.append(buffer, std::size_t(got));
        return write_lines(false);
    }
    write_lines(true);
    close(pipe_);
    pipe_ = -1;
}

void PrefixedOutput::write_lines(bool all) {
    std::string out;
    std::size_t at = 0;
    for (std::size_t end; (end = text_.find('\n', at)) != std::string::npos; at = end + 1)
        out += prefix_ + text_.substr(at, end + 1 - at);
    text_.erase(0, at);
    if (!text_.empty() && (all || text_.size() > longest_line)) {
        out += prefix_ + text_ + "\n";
        text_.clear();
    }
    for (std::size_t written = 0; written < out.size();) {
        const ssize_t count = write(target_, out.data() + written, out.size() - written);
        if (count > 0) written += std::size_t(count);
        if (count >= 0 || errno == EINTR) continue;
        if (errno != EAGAIN) return;  // no reader: the ranks continue
        // Another process that shares the file has made it non-blocking; it is waited for as if it were not.
        pollfd entry{target_, POLLOUT, 0};
        poll(&entry, 1, -1);
    }
}

bool note_end(Process& process) {
    siginfo_t info{};
    if (waitid(P_PID, id_t(process.id), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
        return false;
    process.running = false;
    process.status = info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status;
    return true;
}

std::string ending(int status) {
    if (WIFSIGNALED(status))
        return fmt::format("ended with signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

int exit_code(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

Started start(const Command& command, int rank) {
    std::vector<std::string> words = command.words, variables = environment(command);
    const std::vector<char*> word_pointers = pointers(words);
    std::vector<char*> variable_pointers = pointers(variables);
    const Pipe output = make_pipe(), errors = make_pipe(), failure = make_pipe();
    const pid_t id = fork();
    if (id == 0) become(word_pointers.data(), variable_pointers.data(), output, errors, failure);
    const int reason_of_fork = errno;
    if (id > 0) setpgid(id, id);
    for (const int end : {output.write, errors.write, failure.write}) close(end);
    int reason = 0;
    const bool failed = id < 0 || read(failure.read, &reason, sizeof reason) > 0;
    close(failure.read);
    if (!failed) return {{.rank = rank, .id = id}, output.read, errors.read};
    for (const int end : {output.read, errors.read}) close(end);
    if (id > 0) waitpid(id, nullptr, 0);
    throw std::runtime_error(fmt::format("{}: cannot be started: {}", command.words[0],
                                         std::strerror(id < 0 ? reason_of_fork : reason)));
}

}  // namespace mezzo_run
