// The processes that mezzo-run starts, and their output.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace mezzo_run {

// Copies the output of one rank, with the rank in front of each line.
class PrefixedOutput {
public:
    PrefixedOutput(int pipe, int target, std::string prefix)
        : pipe_(pipe), target_(target), prefix_(std::move(prefix)) {}
    int pipe() const { return pipe_; }  // -1: closed
    // Copies the available output; closes the pipe at its end.
    void copy();

private:
    void write_lines(bool all);
    int pipe_;
    int target_;
    std::string prefix_, text_;
};

struct Process {
    int rank = 0;
    pid_t id = 0;  // also of its process group
    bool running = true;
    int status = 0;  // from waitpid()
};

// Records the end of a running process; returns false if it has not ended. The process stays a zombie, so
// that the number of its process group is not reused, and processes that it left there can still be
// signalled.
bool note_end(Process& process);
// Describes an end: "ended with exit code 3", "ended with signal 9 (Killed)".
std::string ending(int status);
// Returns the exit code, or 128 + signal, as a shell does.
int exit_code(int status);

struct Command {
    std::vector<std::string> words;  // program and arguments
    std::vector<std::pair<std::string, std::string>> variables;
};

// Starts a program in its own process group, with the given variables added to the environment and its output
// in pipes. Throws std::runtime_error on failure.
struct Started {
    Process process;
    int output, errors;  // pipes to read
};
Started start(const Command& command, int rank);

}  // namespace mezzo_run
