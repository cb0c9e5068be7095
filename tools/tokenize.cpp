// Lines to token ids: one line of ids for each line of a file or of standard input.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "mezzo/device.h"
#include "mezzo/tokenizer.h"
#include "samples/program.h"

namespace {

struct Options {
    std::string vocab, input;
    int threads = 1, repeat = 5;
    std::int64_t max_length = 512;
    bool time = false, offsets = false, cased = false, no_special = false;
};

// Lines as std::getline gives them: a carriage return is part of its line.
std::vector<std::string> read_lines(const std::string& path) {
    const std::string text =
        path.empty() ? program::read_all(stdin, "standard input") : program::read_file(path);
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        lines.push_back(text.substr(at, end - at));
        at = end + 1;
    }
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

void run(const Options& options) {
    mezzo::set_num_threads(options.threads);
    const mezzo::data::WordPiece tokenizer(options.vocab, {.lower_case = !options.cased});
    const std::vector<std::string> lines = read_lines(options.input);
    const mezzo::data::EncodeOptions encode{.max_length = options.max_length,
                                            .add_special_tokens = !options.no_special};
    if (options.time)
        time(tokenizer, lines, encode, options.repeat);
    else
        print(tokenizer.encode_batch(lines, encode), options.offsets);
}

int parse_and_run(int argc, char** argv) {
    Options options;
    CLI::App app("Lines to WordPiece token ids");
    app.option_defaults()->always_capture_default();
    app.add_option("--vocab", options.vocab, "vocab.txt, one token a line")->required();
    app.add_option("file", options.input, "text, one line a row; standard input if left out");
    app.add_option("--threads", options.threads, "CPU threads")->transform(program::thread_count());
    app.add_option("--max-length", options.max_length, "tokens a line at most; 0: no limit")
        ->transform(program::not_negative());
    app.add_option("--repeat", options.repeat, "runs of --time")->transform(program::in_range(1, 1000000));
    app.add_flag("--time", options.time, "print tokens per second instead of ids");
    app.add_flag("--offsets", options.offsets, "print id:begin:end, in bytes of the line");
    app.add_flag("--cased", options.cased, "keep upper case and accents");
    app.add_flag("--no-special", options.no_special, "without [CLS] and [SEP]");
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    run(options);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("tokenize", [&] { return parse_and_run(argc, argv); });
}
