#!/usr/bin/env python3
"""Exchanges files between mezzo and Python's safetensors, torch and transformers: tensors of every dtype, a sharded BERT with its
configuration. Needs a Python that has the three, and a build. Usage: tools/check_files.py BUILD_FOLDER"""
import json
import pathlib
import subprocess
import sys
import tempfile

import safetensors
import safetensors.torch
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = r"""
#include <mezzo/io.h>

#include <fstream>
#include <string>

using namespace mezzo;

// Reads a file of weights or a configuration and writes it again.
int main(int argc, char** argv) {
    const std::string what = argv[1], from = argv[2], to = argv[3];
    if (argc != 4) return 2;
    if (what == "config") std::ofstream(to) << io::to_json(io::load_bert_config(from));
    if (what == "weights") io::save_safetensors(to, io::load_state_dict_file(from));
    if (what == "checkpoint") io::save_checkpoint(to, {.model = io::load_state_dict_file(from)});
    return 0;
}
"""
failures = 0


def check(what, good):
    global failures
    failures += not good
    print(f"{'ok    ' if good else 'FAILED'} {what}")


def build(folder, build_folder):
    source, program = folder / "files.cpp", folder / "files"
    source.write_text(PROGRAM, encoding="utf-8")
    subprocess.run(["c++", "-std=c++20", f"-I{ROOT / 'include'}", source, "-o", program, build_folder / "libmezzo.so",
                    f"-Wl,-rpath,{build_folder}"], check=True)
    return program


def same(a, b):
    """Equal names, dtypes, shapes and bits."""
    bits = lambda t: t.contiguous().flatten().view(torch.uint8) if t.numel() else t
    return a.keys() == b.keys() and all(
        a[n].dtype == b[n].dtype and a[n].shape == b[n].shape and torch.equal(bits(a[n]), bits(b[n])) for n in a)


def without_digests(file):
    """Header and data, less what mezzo adds to the metadata."""
    whole = file.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:end])
    metadata = {key: value for key, value in header.pop("__metadata__", {}).items() if not key.startswith("mezzo.crc32.")}
    return metadata, list(header.items()), whole[end:]


def every_dtype():
    state = {}
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool,
                  torch.int8, torch.float8_e4m3fn, torch.float8_e5m2):
        for i, shape in enumerate(((), (1,), (3, 5), (2, 0, 4), (1, 2, 3, 4, 5, 6, 1, 2))):
            state[f"{dtype}.é\"{i}"] = (100 * torch.randn(shape)).abs().to(dtype)
    state["special"] = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])
    return state


def check_weights(program, folder):
    ours, theirs = folder / "ours.safetensors", folder / "theirs.safetensors"
    state = every_dtype()
    safetensors.torch.save_file(state, theirs, metadata={"format": "pt"})
    subprocess.run([program, "weights", theirs, ours], check=True)
    check("safetensors reads what mezzo writes, and mezzo what safetensors writes", same(safetensors.torch.load_file(ours), state))
    check("the same file but for the digests", without_digests(ours) == without_digests(theirs))
    subprocess.run([program, "checkpoint", theirs, ours], check=True)
    read = safetensors.torch.load_file(ours)
    random = read.pop("random")
    check("safetensors reads a checkpoint", same(read, {f"model.{n}": t for n, t in state.items()}) and random.tolist() == [0, 0])


def check_bert(program, folder):
    config = transformers.BertConfig(vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_labels=3,
                                     intermediate_size=64, layer_norm_eps=1e-7, classifier_dropout=0.25, hidden_act="gelu_new")
    model = transformers.BertForSequenceClassification(config)
    model.save_pretrained(folder / "theirs", max_shard_size="30KB")
    (folder / "ours").mkdir()
    index = folder / "theirs" / "model.safetensors.index.json"
    subprocess.run([program, "weights", index, folder / "ours" / "model.safetensors"], check=True)
    check(f"a BERT in {len(list((folder / 'theirs').glob('*.safetensors')))} files",
          same(safetensors.torch.load_file(folder / "ours" / "model.safetensors"), model.state_dict()))
    subprocess.run([program, "config", folder / "theirs" / "config.json", folder / "ours" / "config.json"], check=True)
    read = transformers.BertConfig.from_pretrained(folder / "ours")
    names = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act", "num_labels",
             "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size", "pad_token_id",
             "initializer_range", "layer_norm_eps", "classifier_dropout"]
    check("its configuration", all(getattr(read, n) == getattr(config, n) for n in names))
    again = transformers.BertForSequenceClassification.from_pretrained(folder / "ours")
    check("transformers loads the model that mezzo wrote", same(again.state_dict(), model.state_dict()))


def main():
    torch.manual_seed(1)
    print(f"safetensors {safetensors.__version__}, torch {torch.__version__}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        program = build(folder, pathlib.Path(sys.argv[1]).resolve())
        check_weights(program, folder)
        check_bert(program, folder)
    sys.exit(1 if failures else 0)


main()
