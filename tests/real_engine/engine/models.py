"""Make the models that the real engine serves in tests: tiny, random, seeded, offline.

Run by the engine's own Python: `models.py FOLDER` writes FOLDER/target (a Qwen3 of 0.7 million
parameters), FOLDER/draft (a DFLASH draft for it, block of 8) and their tokenizer.  The weights are
random: the target repeats itself, which an n-gram drafter guesses well, and the draft guesses
nothing.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 512
HIDDEN = 128
INNER = 256
HEADS, KEY_HEADS, HEAD_SIZE = 4, 2, 32
LAYERS = 4
BLOCK_TOKENS = 8
MASK_TOKEN_ID = 3
# Layers of the target whose hidden states the draft sees.
SEEN_LAYERS = (0, 2)
CONTEXT_TOKENS = 4096

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>")
_TEXT = (
    "def return for if in not and the a of each value key list line index count total result "
    "request server batch token cache queue window draft limit page engine memory prompt answer"
)
_CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def random_lines() -> list[str]:
    """What the tokenizer of the random models learns from."""
    rng, words = random.Random(0), _TEXT.split()
    return [f"{' '.join(rng.choices(words, k=12))}.\n" for _ in range(2000)]


def make_tokenizer(lines: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 512 tokens that can write any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        lines,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=list(_SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=_SPECIAL[2], pad_token=_SPECIAL[0]
    )
    fast.chat_template = _CHAT
    return fast


def target_config() -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=HEAD_SIZE,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )


def draft_config() -> dict[str, object]:
    """`config.json` of a DFLASH draft, with the keys that SGLang 0.5.17 to 0.5.21 reads."""
    layers = 2
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "attention_bias": False,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "layer_types": ["full_attention"] * layers,
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "block_size": BLOCK_TOKENS,
        "num_target_layers": LAYERS,
        "dflash_config": {
            "mask_token_id": MASK_TOKEN_ID,
            "target_layer_ids": list(SEEN_LAYERS),
            "block_size": BLOCK_TOKENS,
        },
    }


def draft_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of a DFLASH draft's weights."""
    config = draft_config()
    queries, keys = HEADS * HEAD_SIZE, KEY_HEADS * HEAD_SIZE
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, len(SEEN_LAYERS) * HIDDEN),
        "hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
    }
    for layer in range(int(str(config["num_hidden_layers"]))):
        at = f"layers.{layer}."
        shapes |= {
            f"{at}input_layernorm.weight": (HIDDEN,),
            f"{at}post_attention_layernorm.weight": (HIDDEN,),
            f"{at}self_attn.q_proj.weight": (queries, HIDDEN),
            f"{at}self_attn.k_proj.weight": (keys, HIDDEN),
            f"{at}self_attn.v_proj.weight": (keys, HIDDEN),
            f"{at}self_attn.o_proj.weight": (HIDDEN, queries),
            f"{at}self_attn.q_norm.weight": (HEAD_SIZE,),
            f"{at}self_attn.k_norm.weight": (HEAD_SIZE,),
            f"{at}mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{at}mlp.up_proj.weight": (INNER, HIDDEN),
            f"{at}mlp.down_proj.weight": (HIDDEN, INNER),
        }
    return shapes


def write_draft(folder: Path, weights: dict[str, torch.Tensor], tokenizer_of: Path) -> None:
    """A DFLASH draft as SGLang loads it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(draft_config(), indent=1))
    plain = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_of / name, folder)


def main(folder: Path) -> None:
    target = folder / "target"
    torch.manual_seed(1)
    Qwen3ForCausalLM(target_config()).to(torch.bfloat16).save_pretrained(target)
    make_tokenizer(random_lines()).save_pretrained(target)
    torch.manual_seed(3)
    weights = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * 0.02
        for name, shape in draft_shapes().items()
    }
    write_draft(folder / "draft", weights, tokenizer_of=target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
