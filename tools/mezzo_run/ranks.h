// The processes that mezzo-run has started.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace mezzo_run {

// The output of one rank: lines, with the rank in front of each.
class Lines {
public:
    Lines(int pipe, int target, std::string prefix)
        : pipe_(pipe), target_(target), prefix_(std::move(prefix)) {}
    int pipe() const { return pipe_; }  // -1: closed
    // Copies what is there; at its end it closes the pipe.
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
    int status = 0;  // as waitpid() gives it
};

// Notes the end of a process that runs; false if it has not ended. It is left as a zombie, for as long as which nobody else can get the number
// of its group: the processes that it may have left there can still be signalled.
bool note_end(Process& process);
// "ended with exit code 3", "ended with signal 9 (Killed)".
std::string ending(int status);
// As a shell counts it: the exit code, or 128 + signal.
int exit_code(int status);

struct Command {
    std::vector<std::string> words;  // program and arguments
    std::vector<std::pair<std::string, std::string>> variables;
};

// Starts a program in a process group of its own, with the given variables added to the environment and output into pipes. Throws
// std::runtime_error where that cannot be done.
struct Started {
    Process process;
    int output, errors;  // pipes to read
};
Started start(const Command& command, int rank);

}  // namespace mezzo_run
