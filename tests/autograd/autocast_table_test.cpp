// Makes the table of autocast policies in docs/guide/numerics.md from the op schemas. It is compared with the
// page by tests/docs/autocast_doc_test.py, which writes it there with --write.
#include <catch2/catch.hpp>
#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "autograd/op.h"

using namespace mezzo;

namespace {

struct Policy {
    CastPolicy cast;
    const char *name, *rule;
};
constexpr Policy policies[] = {
    {CastPolicy::low, "low", "inputs become 16 bit, so is the result"},
    {CastPolicy::fp32, "fp32", "inputs become float32, so is the result"},
    {CastPolicy::fp32_out, "fp32 result", "16-bit inputs are read as they are, the result is float32"},
    {CastPolicy::promote, "promote", "inputs become the widest of their dtypes, at least the scope's"},
    {CastPolicy::banned, "refused",
     "of an input that autocast converted: its gradient leaves float16's range; use the form with logits"},
    {CastPolicy::keep, "keep", "ordinary type promotion"},
};

// Schemas of ops that no user calls, in addition to those of gradients.
const std::set<std::string> engine{"reattach", "checkpoint", "function", "column_sum"};

// Name by which a user calls an op, or "" if no user does. A scalar operand makes no difference.
std::string public_name(const AnyOp& op) {
    std::string name = op.name();
    if (name.ends_with("_grad") || name.starts_with("test: ") || engine.contains(name)) return "";
    if (const std::string tail = "_scalar"; name.ends_with(tail)) name.resize(name.size() - tail.size());
    if (name == "rdiv") return "number / x";  // the others are keep
    return name == "rsub" ? name.substr(1) : name;
}

std::map<CastPolicy, std::set<std::string>> ops_by_policy() {
    std::map<CastPolicy, std::set<std::string>> ops;
    for (const AnyOp* op = AnyOp::first(); op; op = op->next())
        if (const std::string name = public_name(*op); !name.empty()) ops[op->traits().cast].insert(name);
    return ops;
}

}  // namespace

TEST_CASE("autocast table: an op has one policy", "[autocast_table]") {
    std::map<std::string, int> times;
    for (const auto& [cast, names] : ops_by_policy())
        for (const std::string& name : names) ++times[name];
    for (const auto& [name, count] : times) {
        CAPTURE(name);
        CHECK(count == 1);
    }
    CHECK(times.size() > 60);
}

TEST_CASE("autocast table: as Markdown", "[.autocast_markdown]") {
    auto ops = ops_by_policy();
    std::string table = "| policy | ops | rule |\n| --- | --- | --- |\n";
    for (const Policy& policy : policies) {
        std::string names;
        for (const std::string& name : ops[policy.cast]) names += (names.empty() ? "`" : ", `") + name + "`";
        if (!names.empty())
            table += std::string("| ") + policy.name + " | " + names + " | " + policy.rule + " |\n";
        ops.erase(policy.cast);
    }
    CHECK(ops.empty());
    std::printf("%s", table.c_str());
}
