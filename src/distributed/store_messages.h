// Messages between the ranks and the store. Every rank has one connection; if it ends, the rank has ended.
// The mezzo-run of each node but the first, whose own mezzo-run holds the store, also has a connection, and
// reports the processes of its node.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mezzo::distributed {

// First text of every connection, since another program may listen at the port, such as torchrun's own store.
// A program that echoes the greeting is not a store.
inline constexpr std::string_view rank_greeting = "mezzo rank 1", store_greeting = "mezzo store 1",
                                  node_greeting = "mezzo node 1";

enum class FromRank : std::uint8_t {
    hello = 1,  // greeting, version, run, size, rank, host, process, processors, timeout in ms, token
    set,        // key, value
    get,        // key: answered by `value` once a rank has set it
    at,         // calls started, calls finished
    left,       // calls finished; the rank leaves in order
    failed,     // words
    followed,   // words, after another rank's failure
    lost,       // started, finished, words: the engine failed; another rank may be the reason
    timed_out,  // started, finished, words; all 0 before the group is complete
    // From a node's mezzo-run:
    node_hello,     // greeting, version, nodes, ranks of each, node, host, process
    process_ended,  // rank, how: "" for exit code 0
};

enum class FromStore : std::uint8_t {
    // greeting, who holds the store; to a node also the run's name and how many starts there were before
    welcome = 1,
    // greeting, 1 if the sender should look for another store, words
    refused,
    // all ranks have joined: the address of the store's machine ("" if all are on it), ranks with the same
    // processors
    ready,
    value,   // key, value
    broken,  // first cause
    note,    // words for the log
    // the holder leaves in order: 1 if a rank has left before it, that rank, the calls it has finished;
    // otherwise 0
    closing,
};

// Message about a rank that left too early, of the store or, after it has closed, of the rank that waits.
inline std::string words_of_unequal_calls(std::uint64_t gone, std::uint64_t finished, std::uint64_t waiting,
                                          std::uint64_t call) {
    return "rank " + std::to_string(gone) + " left after " + std::to_string(finished) + " calls, rank " +
           std::to_string(waiting) + " waits in call " + std::to_string(call) +
           ": unequal numbers of batches?";
}

}  // namespace mezzo::distributed
