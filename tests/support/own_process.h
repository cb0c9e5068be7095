// Runs a hidden case of the test program in a process of its own.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>

extern char** environ;

namespace mezzo::test {

// Runs a case whose tags begin with '.', without its output. Returns its exit status, or 128 + the number of
// the signal that ended it.
inline int exit_status_of_case(const char* name) {
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    char program[] = "/proc/self/exe";
    char* const arguments[] = {program, const_cast<char*>(name), nullptr};
    pid_t child = 0;
    REQUIRE(posix_spawn(&child, program, &quiet, nullptr, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&quiet);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace mezzo::test
