#include "tests/ptx/decoder.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/ptx/device_memory.h"
#include "tests/ptx/machine.h"
#include "tests/ptx/text.h"

namespace mezzo::ptx {
namespace {

constexpr std::size_t gap_bytes = 16;  // behind each shared variable

std::string inner(const std::string& text) {
    const std::string all = trimmed(text);
    return all.substr(1, all.size() - 2);
}

bool starts(const std::string& text, const char* word) {
    return text.compare(0, std::strlen(word), word) == 0;
}

}  // namespace

// ---- the kernel

void Decoder::decode(const FunctionText& function) {
    add_parameters(function);
    add_globals();
    if (!module_.dynamic_shared_.empty())
        names_.add_kernel_variable(module_.dynamic_shared_, {Space::shared, dynamic_shared_base});
    read_body(function.body);
    resolve_branches();
    Instruction end;
    end.flow = Flow::leave;
    end.text = "(end)";
    kernel_.code.push_back(end);
    names_.lay_out(kernel_);
    kernel_.dynamic_offset = round_up(kernel_.shared_bytes, 128);
}

void Decoder::add_parameters(const FunctionText& function) {
    const std::string& text = module_.text_;
    const auto open = text.find('(', function.head);
    if (open >= function.body) return;
    const auto close = text.find(')', open);
    for (const std::string& parameter : split_arguments(text.substr(open + 1, close - open - 1))) {
        const Declaration d = read_declaration(parameter);
        const std::size_t at = round_up(kernel_.parameter_bytes, d.alignment);
        names_.add_kernel_variable(d.name, {Space::param, at});
        kernel_.parameters.push_back({at, d.size});
        kernel_.parameter_bytes = at + d.size;
    }
    const auto limit = text.find(".maxntid", close);
    if (limit >= function.body) return;
    unsigned x = 1, y = 1, z = 1;
    std::sscanf(text.c_str() + limit, ".maxntid %u, %u, %u", &x, &y, &z);
    kernel_.max_threads = x * y * z;
}

void Decoder::add_globals() {
    for (auto& [name, variable] : module_.globals_) {
        if (variable.memory == nullptr) {
            variable.memory = allocate(variable.initial.size());
            if (variable.memory == nullptr) refuse("no memory for a variable", name);
            std::memcpy(variable.memory, variable.initial.data(), variable.initial.size());
            mark_written(variable.memory, variable.initial.size());
        }
        names_.add_kernel_variable(name, {Space::global, reinterpret_cast<std::uint64_t>(variable.memory)});
    }
}

// From the brace that opens it.
void Decoder::read_body(std::size_t at) {
    const std::string& text = module_.text_;
    int depth = 0;
    do {
        at = text.find_first_not_of(" \t\r\n", at);
        if (text[at] == '{') {
            ++depth;
            names_.open_scope();
            ++at;
        } else if (text[at] == '}') {
            --depth;
            names_.close_scope();
            ++at;
        } else if (text.compare(at, 2, "//") == 0) {
            at = text.find('\n', at);
        } else {
            at = read_statement(at);
        }
    } while (depth > 0);
}

// A label, a directive or an instruction. Gives where the next one begins.
std::size_t Decoder::read_statement(std::size_t at) {
    const std::string& text = module_.text_;
    std::size_t end = at;
    while (is_name_character(text[end])) ++end;
    if (text[end] == ':' && text[at] != '.') {
        labels_[instance_ + text.substr(at, end - at)] = std::uint32_t(kernel_.code.size());
        return end + 1;
    }
    const auto semicolon = text.find(';', at);
    const std::string statement = trimmed(text.substr(at, semicolon - at));
    if (statement[0] == '.')
        read_directive(statement);
    else
        read_instruction(statement);
    return semicolon + 1;
}

void Decoder::resolve_branches() {
    for (const auto& [from, label] : branches_) {
        const auto it = labels_.find(label);
        if (it == labels_.end()) refuse("unknown label", label);
        kernel_.code[from].target = it->second;
    }
}

// ---- directives

void Decoder::read_directive(const std::string& text) {
    if (starts(text, ".reg "))
        add_registers(trimmed(text.substr(5)));
    else if (starts(text, ".shared "))
        add_shared(text);
    else if (starts(text, ".local ") || starts(text, ".param "))
        add_local(text);
    else if (starts(text, ".pragma "))
        read_pragma(text);
    else
        refuse("unknown directive", text);
}

// ".f32 %f<9>" or ".pred p"
void Decoder::add_registers(const std::string& text) {
    const auto space = text.find_first_of(" \t");
    const int bytes = type_bytes(text.substr(1, space - 1));
    for (const std::string& name : split_arguments(text.substr(space))) {
        const auto angle = name.find('<');
        if (angle == std::string::npos) {
            names_.name_register(name, names_.add_register(bytes));
            continue;
        }
        const int count = std::stoi(name.substr(angle + 1));
        for (int k = 0; k < count; ++k)
            names_.name_register(name.substr(0, angle) + std::to_string(k), names_.add_register(bytes));
    }
}

// Parameters of calls are local memory, too.
void Decoder::add_local(const std::string& text) {
    const Declaration d = read_declaration(text);
    const std::size_t at = round_up(kernel_.local_bytes, std::max<std::size_t>(d.alignment, 8));
    names_.add_variable(d.name, {Space::local, at});
    kernel_.local_bytes = at + d.size;
}

void Decoder::add_shared(const std::string& text) {
    const Declaration d = read_declaration(text);
    const std::size_t at = round_up(kernel_.shared_bytes, std::max<std::size_t>(d.alignment, 16));
    names_.add_kernel_variable(d.name, {Space::shared, at});
    kernel_.shared.push_back({at, d.size});
    kernel_.shared_bytes = at + d.size + gap_bytes;
    kernel_.declared_shared = round_up(kernel_.declared_shared, d.alignment) + d.size;
}

void Decoder::read_pragma(const std::string& text) {
    static const std::string known = "used_bytes_mask ";
    const auto at = text.find(known);
    if (at != std::string::npos)
        used_bytes_ = std::uint32_t(std::stoul(text.substr(at + known.size()), nullptr, 0));
}

// ---- instructions

void Decoder::read_instruction(const std::string& text) {
    Instruction i;
    i.text = current_ = text;
    std::string rest = text;
    if (rest[0] == '@') {
        i.negated_guard = rest[1] == '!';
        const std::size_t from = i.negated_guard ? 2 : 1, to = rest.find_first_of(" \t");
        i.guard = source(rest.substr(from, to - from), 0);
        rest = trimmed(rest.substr(to));
    }
    const auto end = rest.find_first_of(" \t\n");
    const std::string opcode = rest.substr(0, end);
    rest = end == std::string::npos ? "" : trimmed(rest.substr(end));
    if (opcode == "call.uni") {
        if (i.guard >= 0) refuse("call under a predicate", text);
        return read_call(rest);
    }
    const Arguments arguments = split_arguments(rest);
    const std::string base = opcode.substr(0, opcode.find('.'));
    const auto is_vector = [&](std::size_t n) { return arguments[n].front() == '{'; };
    if (base == "ld" || base == "st")
        read_memory_access(i, opcode, arguments);
    else if (base == "mov" && arguments.size() == 2 && (is_vector(0) || is_vector(1)))
        read_pair(i, opcode, arguments);
    else if (starts(opcode, "cp.async.") || base == "atom" || base == "ldmatrix")
        read_addressed(i, opcode, arguments);
    else if (!read_control_flow(i, opcode, arguments))
        read_plain(i, opcode, arguments);
    used_bytes_ = all_lanes;
    if (i.flow == Flow::block_sync && ++barriers_ == options.drop_barrier) return;
    kernel_.code.push_back(i);
}

bool Decoder::read_control_flow(Instruction& i, const std::string& opcode, const Arguments& arguments) {
    const bool returns = opcode == "ret", branches = opcode == "bra" || opcode == "bra.uni";
    if (!returns && !branches) return false;
    if (returns && instance_.empty()) {
        i.flow = Flow::leave;
        return true;
    }
    i.flow = Flow::branch;
    branches_.emplace_back(std::uint32_t(kernel_.code.size()),
                           instance_ + (returns ? "return" : arguments.at(0)));
    return true;
}

// "(results), name, (values)": the function's body with parameters that are the caller's.
void Decoder::read_call(const std::string& text) {
    const Arguments call = split_arguments(text);
    if (call.size() != 3) refuse("call", text);
    const auto function = module_.functions_.find(call[1]);
    if (function == module_.functions_.end()) refuse("call of an unknown function", text);
    // its head is "(.param .b64 func_retval0) name ( .param .b64 x, ... )"
    const std::string& all = module_.text_;
    const auto out_open = all.find('(', function->second.head), out_close = all.find(')', out_open);
    const auto in_open = all.find('(', out_close), in_close = all.find(')', in_open);
    const Arguments out = split_arguments(all.substr(out_open + 1, out_close - out_open - 1));
    const Arguments in = split_arguments(all.substr(in_open + 1, in_close - in_open - 1));
    const Arguments results = split_arguments(inner(call[0])), values = split_arguments(inner(call[2]));
    if (out.size() != results.size() || in.size() != values.size()) refuse("call", text);
    std::vector<std::pair<std::string, Variable>> aliases;
    const auto add_aliases = [&](const Arguments& parameters, const Arguments& own) {
        for (std::size_t k = 0; k < parameters.size(); ++k) {
            const Variable* const found = names_.find_variable(own[k]);
            if (found == nullptr) refuse("parameter of a call", text);
            aliases.emplace_back(read_declaration(parameters[k]).name, *found);
        }
    };
    add_aliases(out, results);
    add_aliases(in, values);
    const std::string outer = instance_;
    instance_ = outer + std::to_string(++instances_) + "/";
    names_.open_scope();
    for (const auto& [name, alias] : aliases) names_.add_variable(name, alias);
    read_body(function->second.body);
    names_.close_scope();
    labels_[instance_ + "return"] = std::uint32_t(kernel_.code.size());
    instance_ = outer;
}

void Decoder::read_memory_access(Instruction& i, const std::string& opcode, const Arguments& arguments) {
    static const std::map<std::string, Space> spaces = {{"global", Space::global},
                                                        {"shared", Space::shared},
                                                        {"local", Space::local},
                                                        {"param", Space::param}};
    const Arguments parts = split_opcode(opcode);
    const bool store = parts[0] == "st";
    Space space = Space::none;
    std::string type;
    for (std::size_t p = 1; p < parts.size(); ++p) {
        const auto named = spaces.find(parts[p]);
        if (named != spaces.end())
            space = named->second;
        else if (parts[p] == "v2" || parts[p] == "v4")
            i.vector = parts[p] == "v2" ? 2 : 4;
        else if (parts[p] != "nc")
            type = parts[p];
    }
    if (arguments.size() != 2 || space == Space::none || type.empty()) refuse("load or store", i.text);
    const Space of_variable = read_address(arguments[store ? 0 : 1], i, 0);
    if (space == Space::param && of_variable == Space::local)
        space = Space::local;  // of a function that is called
    else if (of_variable != Space::none && of_variable != space)
        refuse("variable of another state space", i.text);
    if (space == Space::shared)
        kernel_.race_granule = std::min(kernel_.race_granule, unsigned(type_bytes(type)) * i.vector);
    i.used_bytes = used_bytes_;
    set_values(i, vector_elements(arguments[store ? 1 : 0]), store, type, space);
}

void Decoder::set_values(Instruction& i, const Arguments& values, bool store, const std::string& type,
                         Space space) {
    const int bytes = type_bytes(type);
    if (values.size() != i.vector) refuse("vector", i.text);
    int register_bytes = 0;
    for (std::size_t v = 0; v < values.size(); ++v) {
        const Register* const found = names_.find_register(values[v]);
        const int own = found != nullptr ? found->bytes : bytes;
        if (v != 0 && own != register_bytes) refuse("registers of several sizes", i.text);
        register_bytes = own;
        i.operands[1 + v] = store ? source(values[v], own) : destination(values[v], own);
    }
    if (register_bytes < bytes) refuse("register too small", i.text);
    i.execute = load_or_store(store, space, bytes, type[0] == 's', register_bytes);
    if (i.execute == nullptr) refuse("load or store", i.text);
}

// mov.b64 {a, b}, c and mov.b64 c, {a, b}
void Decoder::read_pair(Instruction& i, const std::string& opcode, const Arguments& arguments) {
    const bool unpacks = arguments[0].front() == '{';
    const Arguments parts = vector_elements(arguments[unpacks ? 0 : 1]);
    if (parts.size() != 2 || (opcode != "mov.b64" && opcode != "mov.b32")) refuse("mov of a vector", i.text);
    const int bytes = opcode == "mov.b64" ? 8 : 4;
    i.execute = opcode_named((unpacks ? "(unpack)." : "(pack).") + opcode.substr(4)).execute;
    const std::string& whole = arguments[unpacks ? 1 : 0];
    i.operands[0] = unpacks ? source(whole, bytes) : destination(whole, bytes);
    for (std::size_t p = 0; p < 2; ++p)
        i.operands[1 + p] = unpacks ? destination(parts[p], bytes / 2) : source(parts[p], bytes / 2);
}

void Decoder::read_addressed(Instruction& i, const std::string& opcode, const Arguments& arguments) {
    const Opcode& op = opcode_named(opcode);
    i.execute = op.execute;
    i.flow = op.flow;
    i.aligned = opcode.find(".aligned") != std::string::npos;
    if (opcode == "cp.async.wait_group") {
        i.immediate = std::stoll(arguments.at(0));
    } else if (starts(opcode, "ldmatrix.")) {
        const Arguments to = vector_elements(arguments.at(0));
        if (to.size() != 4) refuse("ldmatrix", i.text);
        read_address(arguments.at(1), i, 0);
        for (std::size_t k = 0; k < 4; ++k) i.operands[1 + k] = destination(to[k], 4);
    } else if (starts(opcode, "atom.")) {  // atom d, [a], b
        if (arguments.size() != op.bytes.size() || read_address(arguments[1], i, 1) != Space::none)
            refuse("atom", i.text);
        i.operands[0] = destination(arguments[0], op.bytes[0]);
        for (std::size_t k = 2; k < arguments.size(); ++k) i.operands[k] = source(arguments[k], op.bytes[k]);
    } else if (opcode == "cp.async.cg.shared.global") {
        read_copy(i, arguments);
    }
}

// [to], [from], 16 and, optionally, how many of them are not 0.
void Decoder::read_copy(Instruction& i, const Arguments& arguments) {
    if (arguments.size() < 3 || arguments.size() > 4 || arguments[2] != "16") refuse("cp.async", i.text);
    read_address(arguments[0], i, 0);
    if (i.immediate != 0) refuse("displacement", i.text);
    const bool wide = i.wide_address;
    read_address(arguments[1], i, 1);
    if (i.immediate != 0) refuse("displacement", i.text);
    i.wide_second_address = i.wide_address;
    i.wide_address = wide;
    i.operands[2] = arguments.size() == 4 ? source(arguments[3], 4) : names_.constant(16, 4);
}

// Operands in order; vectors are taken apart, and "a|p" is two.
void Decoder::read_plain(Instruction& i, const std::string& opcode, const Arguments& arguments) {
    const Opcode& op = opcode_named(opcode);
    i.execute = op.execute;
    i.flow = op.flow;
    i.vote = op.vote;
    i.mask_operand = op.mask_operand;
    i.aligned = opcode.find(".aligned") != std::string::npos;
    Arguments flat;
    for (const std::string& argument : arguments)
        for (const std::string& element : vector_elements(argument)) {
            const auto bar = element.find('|');
            flat.push_back(element.substr(0, bar));
            if (bar != std::string::npos) flat.push_back(element.substr(bar + 1));
        }
    if (flat.size() != op.bytes.size()) refuse("number of operands", i.text);
    if (starts(opcode, "cvt.")) flat[1] = narrowed(flat[1], op.bytes[1]);
    for (std::size_t k = 0; k < flat.size(); ++k) i.operands[k] = source(flat[k], op.bytes[k]);
}

// cvt takes a source that is wider than its type: the low part, by an instruction of its own.
std::string Decoder::narrowed(const std::string& name, int bytes) {
    const Register* const found = names_.find_register(name);
    if (found == nullptr || found->bytes <= bytes) return name;
    Instruction i;
    i.text = current_ + " (its source)";
    i.execute =
        opcode_named("cvt.u" + std::to_string(8 * bytes) + ".u" + std::to_string(8 * found->bytes)).execute;
    const Register made = names_.add_register(bytes);
    i.operands[0] = made.offset;
    i.operands[1] = found->offset;
    const std::string made_name = "(narrowed)" + std::to_string(kernel_.code.size());
    names_.name_register(made_name, made);
    kernel_.code.push_back(i);
    return made_name;
}

// ---- operands

std::int32_t Decoder::source(const std::string& text, int bytes) {
    if (const Register* const found = names_.find_register(text)) {
        if (found->bytes != bytes) refuse("register of another size", text + " in " + current_);
        return found->offset;
    }
    std::uint64_t value = 0;
    if (read_number(text, bytes, value)) return names_.constant(value, bytes);
    if (const Variable* const found = variable(text)) return names_.constant(found->address, bytes);
    refuse("unknown operand", text + " in " + current_);
}

std::int32_t Decoder::destination(const std::string& text, int bytes) {
    return text == "_" ? names_.add_register(bytes).offset : source(text, bytes);
}

Space Decoder::read_address(const std::string& text, Instruction& i, int n) {
    if (text.front() != '[' || text.back() != ']') refuse("address", text);
    std::string base = inner(text);
    const auto plus = base.find('+');
    i.immediate = plus == std::string::npos ? 0 : std::stoll(base.substr(plus + 1));
    base = trimmed(base.substr(0, plus));
    if (const Register* const found = names_.find_register(base)) {
        if (found->bytes != 4 && found->bytes != 8) refuse("address register", text);
        i.wide_address = found->bytes == 8;
        i.operands[n] = found->offset;
        return Space::none;
    }
    const Variable* const found = variable(base);
    if (found == nullptr) refuse("unknown variable", text);
    i.wide_address = true;
    i.operands[n] = names_.constant(found->address, 8);
    return found->space;
}

// A kernel has those shared variables of the module that it names.
const Variable* Decoder::variable(const std::string& name) {
    if (const Variable* const found = names_.find_variable(name)) return found;
    const auto it = module_.shared_.find(name);
    if (it == module_.shared_.end()) return nullptr;
    add_shared(it->second);
    return names_.find_variable(name);
}

const Opcode& Decoder::opcode_named(const std::string& name) const {
    const auto it = opcodes().find(name);
    if (it == opcodes().end()) refuse("unknown instruction", current_);
    return it->second;
}

}  // namespace mezzo::ptx
