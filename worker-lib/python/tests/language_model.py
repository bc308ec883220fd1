"""Makes a small language model like Llama, with random weights and a tokenizer of its own.

Arguments: the folder, then the width, the number of layers and the size of the vocabulary. Needs
tokenizers and safetensors, and fetches nothing.

The weights are large enough for every sum over ranks to change what the model writes.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

folder = Path(sys.argv[1])
width, layers, vocabulary = map(int, sys.argv[2:5])
OF_A_HEAD = 64
wide = 3 * width

generator = torch.Generator().manual_seed(1)


def matrix(outputs, inputs):
    """As large as leaves the size of what it is multiplied by as it is."""
    return torch.randn(outputs, inputs, generator=generator) / inputs**0.5


weights = {
    "model.embed_tokens.weight": matrix(vocabulary, width) * width**0.5,
    "model.norm.weight": torch.ones(width),
    "lm_head.weight": matrix(vocabulary, width),
}
for layer in range(layers):
    at = f"model.layers.{layer}"
    for name in ("q", "k", "v", "o"):
        weights[f"{at}.self_attn.{name}_proj.weight"] = matrix(width, width)
    for name in ("gate", "up"):
        weights[f"{at}.mlp.{name}_proj.weight"] = matrix(wide, width)
    weights[f"{at}.mlp.down_proj.weight"] = matrix(width, wide)
    for name in ("input", "post_attention"):
        weights[f"{at}.{name}_layernorm.weight"] = torch.ones(width)

folder.mkdir(parents=True, exist_ok=True)
save_file(weights, folder / "model.safetensors", {"format": "pt"})

# A word for each token.
words = {"<unknown>": 0, "<end>": 1} | {f"w{token}": token for token in range(2, vocabulary)}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.save(str(folder / "tokenizer.json"))

configuration = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "hidden_act": "silu",
    "hidden_size": width,
    "intermediate_size": wide,
    "num_hidden_layers": layers,
    "num_attention_heads": width // OF_A_HEAD,
    "num_key_value_heads": width // OF_A_HEAD,
    "head_dim": OF_A_HEAD,
    "vocab_size": vocabulary,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 1,
}
(folder / "config.json").write_text(json.dumps(configuration))
(folder / "tokenizer_config.json").write_text(
    json.dumps(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": "<unknown>",
            "eos_token": "<end>",
        }
    )
)
