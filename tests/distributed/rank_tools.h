// Helpers that the scenarios of rank_program share, and the scenarios that have files of their own.
#pragma once

#include <mezzo/distributed/group.h>
#include <mezzo/everything.h>

#include <string>

namespace rank_test {

// Appends a line to FOLDER/<rank>.
void write_outcome(const std::string& text);
// Creates the empty file FOLDER/.ends just before this rank does something that ends the others. The test
// measures from the file's time how long they took. May be called by a signal handler.
void note_end();
// Throws std::logic_error if the condition is false.
void require(bool condition, const std::string& what);
// Number from the environment variable `name`.
double option(const char* name, double otherwise);
// Calls init() with TEST_TIMEOUT and TEST_RENDEZVOUS_TIMEOUT.
mezzo::distributed::Group join();

// rank_equality.cpp
void train_equally();
void train_equally_in_passes();
void train_equally_by_16_bits();

// rank_failures.cpp
void kill_self();
void kill_in_reduction();
void kill_in_backward();

// rank_training.cpp
void train_and_save();

// rank_training_failures.cpp
void throw_in_hook();
void throw_in_op();
void train_on_fewer_batches();

// rank_mismatches.cpp
void other_order();
void one_call_short();
void other_models();
void bucket_meets_barrier();
void fork_calls();

}  // namespace rank_test
