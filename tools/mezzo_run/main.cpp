// mezzo-run: starts a program several times, as the ranks of one group, and ends when they have ended.
// docs/guide/launching.md is the guide.
#include "samples/program.h"
#include "tools/mezzo_run/launcher.h"

namespace {

// Reports an error of the command line.
int wrong(const std::string& text) {
    program::tell("mezzo-run: " + text + "\n");
    return 2;
}

int parse_and_run(int argc, char** argv) {
    mezzo_run::Options options;
    bool no_prefix = false;
    CLI::App app{
        "mezzo-run -n N [OPTIONS] PROGRAM [ARGUMENTS]: starts a program N times, as the ranks of one group."};
    app.add_option("-n,--processes", options.processes, "processes on this machine")
        ->required()
        ->transform(program::in_range(1, 4096));
    app.option_defaults()->always_capture_default();
    app.add_option("--nodes", options.nodes, "machines; mezzo-run is started on each of them")
        ->transform(program::in_range(1, 4096));
    app.add_option("--node", options.node, "which of them this is, from 0 on")
        ->transform(program::in_range(0, 4095));
    app.add_option("--master", options.master, "HOST:PORT of node 0, where the ranks meet");
    app.add_option("--wait", options.wait, "seconds that the machines' mezzo-run wait for each other")
        ->transform(program::in_range(0.0, 1e6));
    app.add_option("--grace", options.grace,
                   "seconds from the first failure or a signal until what still runs is killed")
        ->transform(program::in_range(0.0, 1e6));
    app.add_option(
           "--restarts", options.restarts,
           "how often all ranks are started again after one has failed; they go on from their checkpoint")
        ->transform(program::in_range(0, 10000));
    app.add_flag("--no-prefix", no_prefix, "do not put the rank in front of each line of output");
    app.prefix_command();  // all words after the program's name are the program's
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    options.command = app.remaining();
    if (!options.command.empty() && options.command[0] == "--")
        options.command.erase(options.command.begin());
    if (options.command.empty()) return wrong("no program to start; --help says more");
    if (options.command[0].starts_with('-'))
        return wrong(options.command[0] + ": no such option; --help says more");
    options.prefix = !no_prefix;
    if (options.nodes > 1 && options.master.empty())
        throw std::runtime_error("--nodes: --master HOST:PORT says where node 0 is");
    if (options.node >= options.nodes)
        return wrong(fmt::format("--node: {} is none of the nodes 0 to {}", options.node, options.nodes - 1));
    return mezzo_run::run(options);
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("mezzo-run", [&] { return parse_and_run(argc, argv); });
}
