// Lines to token ids: one line of ids for each line of a file or of standard input.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <fstream>
#include <iostream>

#include "mezzo/device.h"
#include "mezzo/error.h"
#include "mezzo/tokenizer.h"

namespace {

struct Options {
    std::string vocab, input;
    int threads = 1, repeat = 5;
    std::int64_t max_length = 512;
    bool time = false, offsets = false, cased = false, no_special = false;
};

std::vector<std::string> read_lines(std::istream& in) {
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

void print(const std::vector<mezzo::data::Encoding>& encodings, bool offsets) {
    std::string out;
    for (const mezzo::data::Encoding& encoding : encodings) {
        for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
            if (i > 0) out += ' ';
            out += std::to_string(encoding.ids[i]);
            if (offsets) out += fmt::format(":{}:{}", encoding.offsets[i].begin, encoding.offsets[i].end);
        }
        out += '\n';
    }
    std::fwrite(out.data(), 1, out.size(), stdout);
}

// Prints tokens per second of the best of `repeat` runs, line by line and as one batch.
void time(const mezzo::data::WordPiece& tokenizer, const std::vector<std::string>& lines,
          const mezzo::data::EncodeOptions& encode, int repeat) {
    std::int64_t tokens = 0;
    const auto best = [&](const auto& run) {
        double seconds = 1e30;
        for (int i = 0; i < repeat; ++i) {
            tokens = 0;
            const auto start = std::chrono::steady_clock::now();
            run();
            const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
            seconds = std::min(seconds, elapsed.count());
        }
        return seconds;
    };
    const double single = best([&] {
        for (const std::string& line : lines) tokens += tokenizer.encode(line, encode).size();
    });
    const double batch = best([&] {
        for (const auto& encoding : tokenizer.encode_batch(lines, encode)) tokens += encoding.size();
    });
    fmt::print(
        "{} lines, {} tokens; line by line {:.6f} s, {:.0f} tokens/s; batch on {} threads {:.6f} s, "
        "{:.0f} tokens/s\n",
        lines.size(), tokens, single, double(tokens) / single, mezzo::num_threads(), batch,
        double(tokens) / batch);
}

int run(const Options& options) {
    mezzo::set_num_threads(options.threads);
    const mezzo::data::WordPiece tokenizer(options.vocab, {.lower_case = !options.cased});
    std::ifstream file;
    if (!options.input.empty()) {
        file.open(options.input, std::ios::binary);
        mezzo::check(file.is_open(), mezzo::ErrorKind::io, "tokenize: cannot open ", options.input);
    }
    const std::vector<std::string> lines = read_lines(options.input.empty() ? std::cin : file);
    const mezzo::data::EncodeOptions encode{.max_length = options.max_length,
                                            .add_special_tokens = !options.no_special};
    if (options.time)
        time(tokenizer, lines, encode, options.repeat);
    else
        print(tokenizer.encode_batch(lines, encode), options.offsets);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("Lines to WordPiece token ids");
    app.add_option("--vocab", options.vocab, "vocab.txt, one token a line")->required();
    app.add_option("file", options.input, "text, one line a row; standard input if left out");
    app.add_option("--threads", options.threads, "CPU threads")->capture_default_str();
    app.add_option("--max-length", options.max_length, "tokens a line at most; 0: no limit")
        ->capture_default_str();
    app.add_option("--repeat", options.repeat, "runs of --time")->capture_default_str();
    app.add_flag("--time", options.time, "print tokens per second instead of ids");
    app.add_flag("--offsets", options.offsets, "print id:begin:end, in bytes of the line");
    app.add_flag("--cased", options.cased, "keep upper case and accents");
    app.add_flag("--no-special", options.no_special, "without [CLS] and [SEP]");
    CLI11_PARSE(app, argc, argv);
    try {
        return run(options);
    } catch (const mezzo::Error& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
