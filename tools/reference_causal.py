#!/usr/bin/env python3
"""Writes tests/reference/causal.h: logits, losses and gradients of a tiny GPT-2 and a tiny Llama from transformers, in float64.

Usage: tools/reference_causal.py > tests/reference/causal.h
"""
import math
import torch
import transformers

VOCABULARY, BATCH, LENGTH = 23, 2, 6
MODELS = {
    "gpt": transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
                                   attn_pdrop=0, bos_token_id=0, eos_token_id=0),
    "llama": transformers.LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=16, hidden_size=32, intermediate_size=48,
                                      num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
                                      tie_word_embeddings=False, bos_token_id=0, eos_token_id=0),
}


def array(name, values):
    words = [f"{float(v):.10g}" for v in values]
    print(f"inline constexpr double {name}[{len(words)}] = {{")
    for i in range(0, len(words), 10):
        print("    " + ", ".join(words[i:i + 10]) + ",")
    print("};")


def mixed(count, k):
    """Numbers in [-1, 1) that look random; tests/models/causal_models.h makes the same."""
    v = (torch.arange(count, dtype=torch.int64) * 1103515245 + 12345 * k + 7) & 0xffffffff
    v = ((v ^ (v >> 13)) * 1274126177) & 0xffffffff
    v = v ^ (v >> 16)
    return (v & 0xffffff).double() / (1 << 23) - 1


def fill(model):
    """Parameters in the order of their names."""
    with torch.no_grad():
        for k, (_, p) in enumerate(sorted(model.named_parameters())):
            values = mixed(p.numel(), k).reshape(p.shape)
            p.copy_(values / 4 if p.dim() == 2 else 1 + values / 4)


def model_of(name):
    kind = transformers.GPT2LMHeadModel if name == "gpt" else transformers.LlamaForCausalLM
    model = kind(MODELS[name]).double().eval()
    fill(model)
    return model


print(f"// Written by tools/reference_causal.py with PyTorch {torch.__version__.split('+')[0]} and transformers {transformers.__version__};"
      " do not edit.")
print("// clang-format off\n#pragma once\n\nnamespace causal_reference {\n")
ids = torch.tensor([[(7 * i + 5 * b + i * i) % VOCABULARY for i in range(LENGTH + 1)] for b in range(BATCH)])
for name in MODELS:
    model = model_of(name)
    logits = model(ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
    loss.backward()
    array(name + "_logits", logits.detach().reshape(-1))
    array(name + "_loss", [loss.item()])
    gradients = [p.grad.reshape(-1) for _, p in sorted(model.named_parameters())]
    array(name + "_gradient_norms", [g.norm() for g in gradients])
    # One number that depends on the order of the elements.
    array(name + "_gradient_waves", [torch.dot(g, torch.sin(math.pi * 0.1 * torch.arange(len(g), dtype=torch.float64))) for g in gradients])
print("\n}  // namespace causal_reference")
