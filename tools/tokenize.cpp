// Converts lines to token ids: one line of ids for each line of a file or of standard input. Uses a vocab.txt
// of BERT, or a tokenizer as Hugging Face saves it; or learns such a tokenizer.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <stdexcept>

#include "mezzo/device.h"
#include "mezzo/text/pretrained_tokenizer.h"
#include "mezzo/text/tokenizer.h"
#include "samples/program.h"

namespace {

struct Options {
    std::string vocab, tokenizer, input;
    std::int64_t learn_bpe = 0;  // tokens; 0: encode
    int threads = 1, repeat = 5;
    std::optional<std::int64_t> max_length;
    bool time = false, offsets = false, cased = false, no_special = false, pairs = false, types = false,
         decode = false;
};

// Reads lines as std::getline does: a carriage return is part of its line.
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

void print(const std::vector<mezzo::data::Encoding>& encodings, const Options& options) {
    std::string out;
    for (const mezzo::data::Encoding& encoding : encodings) {
        for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
            if (i > 0) out += ' ';
            out += std::to_string(encoding.ids[i]);
            if (options.types) out += fmt::format(":{}", encoding.token_type_ids[i]);
            if (options.offsets)
                out += fmt::format(":{}:{}", encoding.offsets[i].begin, encoding.offsets[i].end);
        }
        out += '\n';
    }
    std::fwrite(out.data(), 1, out.size(), stdout);
}

// Encodes lines two by two, as pairs of texts.
template <class Tokenizer, class Encode>
std::vector<mezzo::data::Encoding> encode_pairs(const Tokenizer& tokenizer,
                                                const std::vector<std::string>& lines, const Encode& encode) {
    if (lines.size() % 2 != 0)
        throw std::runtime_error(
            fmt::format("--pairs: {} lines are no pairs; the last one has no partner", lines.size()));
    std::vector<mezzo::data::Encoding> encodings;
    for (std::size_t i = 0; i + 1 < lines.size(); i += 2)
        encodings.push_back(tokenizer.encode_pair(lines[i], lines[i + 1], encode));
    return encodings;
}

template <class Tokenizer>
void print_decoded(const Tokenizer& tokenizer, const std::vector<mezzo::data::Encoding>& encodings) {
    std::string out;
    for (const mezzo::data::Encoding& encoding : encodings) out += tokenizer.decode(encoding.ids) + "\n";
    std::fwrite(out.data(), 1, out.size(), stdout);
}

// Prints tokens per second of the best of `repeat` runs, line by line and as one batch.
template <class Tokenizer, class Encode> void time(const Tokenizer& tokenizer,
                                                   const std::vector<std::string>& lines,
                                                   const Encode& encode, int repeat) {
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

template <class Tokenizer, class Encode>
void run(const Tokenizer& tokenizer, const Encode& encode, const Options& options) {
    const std::vector<std::string> lines = read_lines(options.input);
    if (options.time) return time(tokenizer, lines, encode, options.repeat);
    const std::vector<mezzo::data::Encoding> encodings =
        options.pairs ? encode_pairs(tokenizer, lines, encode) : tokenizer.encode_batch(lines, encode);
    if (options.decode)
        print_decoded(tokenizer, encodings);
    else
        print(encodings, options);
}

void run(const Options& options) {
    mezzo::set_num_threads(options.threads);
    if (options.learn_bpe > 0) {
        const std::string json =
            mezzo::data::learn_bpe(read_lines(options.input), {.size = options.learn_bpe});
        std::fwrite(json.data(), 1, json.size(), stdout);
    } else if (options.tokenizer.empty()) {
        run(mezzo::data::WordPiece(options.vocab, {.lower_case = !options.cased}),
            mezzo::data::EncodeOptions{.max_length = options.max_length.value_or(512),
                                       .add_special_tokens = !options.no_special},
            options);
    } else {
        run(mezzo::data::Tokenizer(options.tokenizer),
            mezzo::data::TokenizeOptions{.max_length = options.max_length.value_or(-1),
                                         .add_special_tokens = !options.no_special},
            options);
    }
}

int parse_and_run(int argc, char** argv) {
    Options options;
    CLI::App app("Lines to token ids");
    app.option_defaults()->always_capture_default();
    CLI::Option_group* const files = app.add_option_group("tokenizer", "one of these");
    files->add_option("--vocab", options.vocab, "vocab.txt of BERT, one token a line");
    files->add_option("--tokenizer", options.tokenizer, "tokenizer.json, or the folder of a model");
    files
        ->add_option("--learn-bpe", options.learn_bpe,
                     "prints a tokenizer.json with this number of tokens, learnt from the lines")
        ->transform(program::positive());
    files->require_option(1);
    app.add_option("file", options.input, "text, one line a row; standard input if left out");
    app.add_option("--threads", options.threads, "CPU threads")->transform(program::thread_count());
    app.add_option("--max-length", options.max_length,
                   "tokens a line at most; 0: no limit; default: 512 with "
                   "--vocab, what the file says with --tokenizer")
        ->transform(program::not_negative());
    app.add_option("--repeat", options.repeat, "runs of --time")->transform(program::in_range(1, 1000000));
    app.add_flag("--time", options.time, "print tokens per second instead of ids");
    app.add_flag("--offsets", options.offsets, "print id:begin:end, in bytes of the line");
    app.add_flag("--types", options.types, "print id:type");
    app.add_flag("--pairs", options.pairs, "two lines are a pair of texts");
    app.add_flag("--decode", options.decode, "print the text of the ids instead of them");
    app.add_flag("--cased", options.cased, "with --vocab: keep upper case and accents");
    app.add_flag("--no-special", options.no_special, "without special tokens such as [CLS] and [SEP]");
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    run(options);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("tokenize", [&] { return parse_and_run(argc, argv); });
}
