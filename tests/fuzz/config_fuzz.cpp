// libFuzzer target of configurations: any text as a configuration of BERT, GPT-2 and Llama, and as the index
// of a sharded model.
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "io/json.h"
#include "io/shards.h"
#include "mezzo/io.h"
#include "mezzo/models/bert_config.h"
#include "mezzo/models/gpt_config.h"
#include "mezzo/models/gpt_files.h"

using namespace mezzo;

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

template <class Parse> void refuse_or_read(const Parse& parse) {
    try {
        parse();
    } catch (const Error& error) {
        require(std::strlen(error.what()) < 2000);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    refuse_or_read([&] {
        const nn::BertConfig config = io::parse_bert_config(text);
        require(io::parse_bert_config(io::to_json(config)) == config);
    });
    refuse_or_read([&] {
        const nn::GptConfig config = io::parse_gpt_config(text);
        require(io::parse_gpt_config(io::to_json(config)) == config);
    });
    refuse_or_read([&] {
        const nn::LlamaConfig config = io::parse_llama_config(text);
        require(io::parse_llama_config(io::to_json(config)) == config);
    });
    refuse_or_read([&] {
        for (const auto& [file, tensor] : io::parse_shard_index(text, "index"))
            require(!file.empty() && file.find('/') == file.npos && file.find("..") == file.npos);
    });
    // Invalid UTF-8 is found before any parser sees it; quoted text parses as the same text.
    if (io::first_invalid_utf8(text) == text.size()) {
        std::string quoted;
        io::append_quoted(quoted, text);
        if (text.find('\0') == text.npos) require(io::parse_json_tree(quoted, "quoted").text == text);
    }
    return 0;
}
