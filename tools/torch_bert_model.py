"""BERT in plain PyTorch (any version), with the names of Hugging Face's checkpoints, and safetensors files without a package.
Shared by tools/torch_bert.py and tools/torch_bench.py."""
import json
import math

import torch
from torch import nn
from torch.nn import functional as F

FILE_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "U8": torch.uint8,
               "BOOL": torch.bool}


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = bytearray(file.read())
    result = {}
    for name, info in header.items():
        if name != "__metadata__":
            begin, end = info["data_offsets"]
            dtype = FILE_DTYPES[info["dtype"]]
            values = torch.frombuffer(data, dtype=dtype, offset=begin, count=(end - begin) // torch.empty((), dtype=dtype).element_size()) \
                if end > begin else torch.empty(0, dtype=dtype)
            result[name] = values.reshape(info["shape"])
    return result


class Embeddings(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.word_embeddings = nn.Embedding(c["vocab_size"], c["hidden_size"], padding_idx=c["pad_token_id"])
        self.position_embeddings = nn.Embedding(c["max_position_embeddings"], c["hidden_size"])
        self.token_type_embeddings = nn.Embedding(c["type_vocab_size"], c["hidden_size"])
        self.LayerNorm = nn.LayerNorm(c["hidden_size"], eps=c["layer_norm_eps"])
        self.dropout = nn.Dropout(c["hidden_dropout_prob"])

    def forward(self, ids, types):
        types = torch.zeros_like(ids) if types is None else types
        positions = self.position_embeddings.weight[:ids.shape[1]]
        return self.dropout(self.LayerNorm(self.word_embeddings(ids) + positions + self.token_type_embeddings(types)))


def attend(q, k, v, mask, p):
    """The best attention this version has; mask: True where a query may look."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return F.dropout(scores.softmax(-1), p) @ v


class SelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(c["hidden_size"], c["hidden_size"]) for _ in range(3))
        self.heads, self.p = c["num_attention_heads"], c["attention_probs_dropout_prob"]

    def forward(self, x, mask):
        q, k, v = (f(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        return attend(q, k, v, mask, self.p if self.training else 0.0).transpose(1, 2).flatten(2)


class Residual(nn.Module):
    def __init__(self, inputs, c):
        super().__init__()
        self.dense = nn.Linear(inputs, c["hidden_size"])
        self.LayerNorm = nn.LayerNorm(c["hidden_size"], eps=c["layer_norm_eps"])
        self.dropout = nn.Dropout(c["hidden_dropout_prob"])

    def forward(self, x, residual):
        return self.LayerNorm(self.dropout(self.dense(x)) + residual)


def named(**modules):
    """A module that only names others."""
    result = nn.Module()
    for name, module in modules.items():
        setattr(result, name, module)
    return result


ACTIVATIONS = {"gelu": F.gelu, "gelu_new": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "silu": F.silu}


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention = named(self=SelfAttention(c), output=Residual(c["hidden_size"], c))
        self.intermediate = named(dense=nn.Linear(c["hidden_size"], c["intermediate_size"]))
        self.output = Residual(c["intermediate_size"], c)
        self.activation = ACTIVATIONS[c["hidden_act"]]

    def forward(self, x, mask):
        y = self.attention.output(getattr(self.attention, "self")(x, mask), x)
        return self.output(self.activation(self.intermediate.dense(y)), y)


class Bert(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embeddings = Embeddings(c)
        self.encoder = named(layer=nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"])))
        self.pooler = named(dense=nn.Linear(c["hidden_size"], c["hidden_size"]))

    def forward(self, ids, mask=None, types=None):
        x = self.embeddings(ids, types)
        mask = None if mask is None else mask[:, None, None, :]
        for layer in self.encoder.layer:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler.dense(x[:, 0]))


class Classifier(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.bert = Bert(c)
        dropout = c.get("classifier_dropout")
        self.dropout = nn.Dropout(c["hidden_dropout_prob"] if dropout is None else dropout)
        self.classifier = nn.Linear(c["hidden_size"], c["num_labels"])

    def forward(self, ids, mask=None, types=None):
        hidden, pooled = self.bert(ids, mask, types)
        return hidden, self.classifier(self.dropout(pooled))


def config(**changes):
    """Sizes of bert-base but for the changes."""
    result = dict(vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
                  hidden_act="gelu", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, max_position_embeddings=512,
                  type_vocab_size=2, layer_norm_eps=1e-12, pad_token_id=0, num_labels=2)
    result.update(changes)
    return result


def adamw(net, lr, weight_decay=0.01):
    """The fastest AdamW this version has."""
    for choice in ({"fused": True}, {"foreach": True}):
        try:
            optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=weight_decay, **choice)
        except (TypeError, RuntimeError, ValueError):  # not in this version, or not on this device
            continue
        return optimizer
    return torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=weight_decay)


def update(loss, optimizer, scaler=None):
    if scaler:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()


def training_step(net, optimizer, ids, labels, device, dtype=None, mask=None, types=None, scaler=None):
    """One step; dtype: of autocast. Returns the loss."""
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        _, logits = net(ids, mask, types)
    loss = F.cross_entropy(logits.float(), labels)
    update(loss, optimizer, scaler)
    return loss.detach()
