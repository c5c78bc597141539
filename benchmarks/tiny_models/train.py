"""Train a tiny target and a DFLASH draft for it, so that accept lengths depend on the draft window.

Run by the engine's Python, on CPU or GPU, from the root of the tree::

    PYTHONPATH=.:tests/real_engine/engine:tests/real_engine/engine/stubs \\
        PYTHON benchmarks/tiny_models/train.py FOLDER [--device auto] [--minutes M] [--longer N]

The target learns to say what stands `LAG_TOKENS` before: it recites the end of the question, then
itself, over and over.  So the draft can guess it exactly where its window reaches back that far,
and hardly at all where it does not.  The questions are the benchmark's own prompts, every few
documents from a new library of texts, so that nothing can be learned by heart.

FOLDER gets `target` and `draft` as the engine loads them, and `state.pt`, from which training goes
on when `--minutes` was too short.  `--longer 8` gives the draft eight times the steps: minutes on a
GPU, hours on a CPU.  Everything is seeded; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from models import (  # the maker of the random models: same shapes, same files
    BLOCK_TOKENS,
    MASK_TOKEN_ID,
    SEEN_LAYERS,
    draft_config,
    draft_shapes,
    make_tokenizer,
    target_config,
    write_draft,
)
from torch import nn
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from autotune.prompts import PieceCounts, PromptLibrary, PromptSet

SEED = 20
LAG_TOKENS = 48
LIBRARY_DOCUMENTS = 64
ANSWER_TOKENS = 112
"""Of a document; an answer may go on, since it repeats itself."""
WINDOWS = (16, 32, 64, 128, 256, None)
BLOCKS = 12
"""Blocks of one document that the draft learns from at once."""


@dataclass(frozen=True)
class Stage:
    """A part of the training: questions of some length, so many steps.

    Attributes:
        tokens: Least and most tokens of a question.
        documents: Of one step.
    """

    steps: int
    tokens: tuple[int, int]
    documents: int
    rate: float


TARGET_STAGES = (
    Stage(300, (60, 120), 12, 3e-3),
    Stage(100, (60, 300), 6, 1e-3),
    Stage(60, (200, 660), 4, 5e-4),
)
DRAFT_STAGES = (
    Stage(300, (60, 160), 8, 3e-3),
    Stage(100, (100, 660), 4, 1e-3),
)


class Questions:
    """The benchmark's prompts, of any length, tokenized."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self._instead = self._ids(".")[0]
        self._rng = random.Random(seed)
        self._seed = seed
        self._asked = 0

    def documents(self, stage: Stage) -> list[list[int]]:
        """Questions, each with the beginning of its answer."""
        return [self._document(self._rng.randint(*stage.tokens)) for _ in range(stage.documents)]

    def _document(self, tokens: int) -> list[int]:
        if self._asked % LIBRARY_DOCUMENTS == 0:
            self._library = PromptLibrary.of_seed(self._seed + self._asked)
            pieces = self._tokenizer(self._library.texts(), add_special_tokens=False)["input_ids"]
            self._counts = PieceCounts(tuple(float(len(ids)) for ids in pieces), 0.0, exact=True)
        self._asked += 1
        prompts = PromptSet(
            seed=self._asked,
            key="train",
            context_tokens=max(tokens, 160),
            prompt_library=self._library,
            counts=self._counts,
        )
        text = prompts.text(0)
        ids = self._ids(text)
        if len(ids) > tokens:
            text = self._tokenizer.decode(ids[:tokens])
            ids = self._ids(text)
        asked = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        document = self._ids(asked)
        for _ in range(ANSWER_TOKENS):
            said = document[-LAG_TOKENS]
            document.append(self._instead if said in self._special else said)
        return document

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return found


def lines_of_library(seed: int) -> list[str]:
    """What the tokenizer learns from."""
    return PromptLibrary.of_seed(seed).texts()


def padded(documents: list[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and lengths, shapes (n, longest) and (n,)."""
    longest = max(map(len, documents))
    ids = torch.zeros(len(documents), longest, dtype=torch.long)
    for row, document in enumerate(documents):
        ids[row, : len(document)] = torch.tensor(document)
    return ids.to(device), torch.tensor([len(d) for d in documents], device=device)


# -- the target ---------------------------------------------------------------------------------


def target_loss(
    model: Qwen3ForCausalLM, ids: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, float]:
    """Mean loss over all tokens, and the share of the answer's tokens that are right."""
    logits = model(input_ids=ids).logits[:, :-1].float()
    wanted = ids[:, 1:]
    at = torch.arange(wanted.shape[1], device=ids.device).unsqueeze(0)
    real = at < (lengths - 1).unsqueeze(1)
    answer = real & (at >= (lengths - 1 - ANSWER_TOKENS).unsqueeze(1))
    losses = functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
    # A question is noise for the most part; its answer is what counts.
    weights = torch.where(answer, 1.0, 0.2) * real
    right = ((logits.argmax(-1) == wanted) & answer).sum() / answer.sum()
    return (losses * weights).sum() / weights.sum(), float(right)


# -- the draft ----------------------------------------------------------------------------------


class Draft(nn.Module):
    """The DFLASH draft as SGLang computes it, for many blocks at once.

    A block is its known first token and masks.  Its queries see the target's hidden states of the
    tokens before it, projected to keys and values in each layer, and the whole block.
    """

    def __init__(self) -> None:
        super().__init__()
        config = draft_config()
        self.layers = int(str(config["num_hidden_layers"]))
        self.heads = int(str(config["num_attention_heads"]))
        self.key_heads = int(str(config["num_key_value_heads"]))
        self.size = int(str(config["head_dim"]))
        self.epsilon = 1e-6
        self.weights = nn.ParameterDict(
            {
                name.replace(".", "/"): nn.Parameter(
                    torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * 0.04
                )
                for name, shape in draft_shapes().items()
            }
        )

    def plain(self) -> dict[str, torch.Tensor]:
        """Weights by the engine's names."""
        return {n.replace("/", "."): w.detach().cpu() for n, w in self.weights.items()}

    def forward(
        self, hidden: torch.Tensor, blocks: torch.Tensor, starts: torch.Tensor, seen: torch.Tensor
    ) -> torch.Tensor:
        """Hidden states of the blocks, normed for the target's head.

        Args:
            hidden: Of the target's seen layers, shape (n, tokens, layers x HIDDEN).
            blocks: Embedded blocks, shape (n, m, BLOCK_TOKENS, HIDDEN).
            starts: Position of each block's first token, shape (n, m).
            seen: Which tokens each block may see, shape (n, m, tokens).
        """
        context = self._norm(functional.linear(hidden, self._weight("fc")), "hidden_norm")
        n, m, length, _ = blocks.shape
        tokens = hidden.shape[1]
        at = starts.unsqueeze(-1) + torch.arange(length, device=starts.device)
        before = torch.arange(tokens, device=starts.device).expand(n, tokens)
        state = blocks
        mask = torch.cat([seen, seen.new_ones(n, m, length)], -1)
        for layer in range(self.layers):
            name = f"layers.{layer}."
            inner = self._norm(state, f"{name}input_layernorm")
            q = self._heads(inner, f"{name}self_attn.q", self.heads, at, norm=True)
            k = self._heads(inner, f"{name}self_attn.k", self.key_heads, at, norm=True)
            v = self._heads(inner, f"{name}self_attn.v", self.key_heads, None, norm=False)
            ck = self._heads(context, f"{name}self_attn.k", self.key_heads, before, norm=True)
            cv = self._heads(context, f"{name}self_attn.v", self.key_heads, None, norm=False)
            keys = torch.cat([ck.unsqueeze(1).expand(-1, m, -1, -1, -1), k], 2)
            values = torch.cat([cv.unsqueeze(1).expand(-1, m, -1, -1, -1), v], 2)
            out = functional.scaled_dot_product_attention(
                q.flatten(0, 1).transpose(1, 2),
                keys.flatten(0, 1).transpose(1, 2),
                values.flatten(0, 1).transpose(1, 2),
                attn_mask=mask.flatten(0, 1)[:, None, None, :],
                enable_gqa=True,
            )
            out = out.transpose(1, 2).reshape(n, m, length, -1)
            state = state + functional.linear(out, self._weight(f"{name}self_attn.o_proj"))
            inner = self._norm(state, f"{name}post_attention_layernorm")
            gate = functional.silu(functional.linear(inner, self._weight(f"{name}mlp.gate_proj")))
            up = functional.linear(inner, self._weight(f"{name}mlp.up_proj"))
            state = state + functional.linear(gate * up, self._weight(f"{name}mlp.down_proj"))
        return self._norm(state, "norm")

    def _weight(self, name: str) -> torch.Tensor:
        return self.weights[f"{name}.weight".replace(".", "/")]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self._weight(name), self.epsilon)

    def _heads(
        self, x: torch.Tensor, name: str, heads: int, at: torch.Tensor | None, *, norm: bool
    ) -> torch.Tensor:
        y = functional.linear(x, self._weight(f"{name}_proj")).unflatten(-1, (heads, self.size))
        if norm:
            y = self._norm(y, f"{name}_norm")
        return y if at is None else self._rotated(y, at)

    def _rotated(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Rotary positions, the halves of a head paired, base 10000."""
        half = self.size // 2
        turn = 10000.0 ** (-torch.arange(half, device=x.device) / half)
        angle = at.unsqueeze(-1).float() * turn
        cos, sin = angle.cos().unsqueeze(-2), angle.sin().unsqueeze(-2)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def draft_loss(
    draft: Draft,
    target: Qwen3ForCausalLM,
    ids: torch.Tensor,
    lengths: torch.Tensor,
    rng: random.Random,
) -> tuple[torch.Tensor, float]:
    """Loss of the guesses, and the mean number of right ones in front (full context only)."""
    device = ids.device
    with torch.no_grad():
        out = target(input_ids=ids, output_hidden_states=True)
        # Entry 0 is the embedding, entry k + 1 what layer k gives.
        hidden = torch.cat([out.hidden_states[k + 1] for k in SEEN_LAYERS], -1)
        said = out.logits.argmax(-1)
    embedding = target.get_input_embeddings().weight.detach()
    offset = torch.randint(ANSWER_TOKENS - BLOCK_TOKENS, (len(ids), BLOCKS), device=device)
    starts = (lengths - ANSWER_TOKENS).unsqueeze(1) + offset
    inside = starts.unsqueeze(-1) + torch.arange(BLOCK_TOKENS, device=device)
    inside = inside.clamp(max=ids.shape[1] - 1)
    # What the target itself would say after the tokens before, since that is what is verified.
    truth = said.gather(1, (inside - 1).flatten(1)).view_as(inside)
    block = torch.full_like(truth, MASK_TOKEN_ID)
    block[..., 0] = ids.gather(1, starts)
    at = torch.arange(ids.shape[1], device=device)
    seen = at < starts.unsqueeze(-1)
    window = rng.choice(WINDOWS)
    if window is not None:
        seen = seen & (at >= starts.unsqueeze(-1) - window)
    states = draft(hidden, embedding[block], starts, seen)
    logits = functional.linear(states[..., 1:, :], embedding)
    weights = 0.8 ** torch.arange(BLOCK_TOKENS - 1, device=device)
    losses = functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), truth[..., 1:].reshape(-1), reduction="none"
    )
    loss = (losses.view(*truth.shape[:2], -1) * weights).mean()
    right = (logits.argmax(-1) == truth[..., 1:]).cumprod(-1).sum(-1).float().mean()
    return loss, float(right) if window is None else math.nan


# -- training -----------------------------------------------------------------------------------


def schedule(stages: tuple[Stage, ...]) -> Iterator[tuple[Stage, float]]:
    """Stage and learning rate of each step: warm up over 50 steps, fall by a cosine."""
    for stage in stages:
        for step in range(stage.steps):
            falling = 0.5 * (1 + math.cos(math.pi * step / stage.steps))
            yield stage, stage.rate * min(1.0, (step + 1) / 50) * (0.1 + 0.9 * falling)


def train(
    name: str,
    parameters: Iterator[nn.Parameter],
    loss_of: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, float]],
    stages: tuple[Stage, ...],
    questions: Questions,
    *,
    state: dict[str, object],
    device: torch.device,
    ends_at: float,
) -> bool:
    """Train from where `state` stands; says whether all steps are done."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, betas=(0.9, 0.98))
    if f"{name}_optimizer" in state:
        optimizer.load_state_dict(state[f"{name}_optimizer"])  # type: ignore[arg-type]
    done = int(str(state.get(f"{name}_steps", 0)))
    total = sum(stage.steps for stage in stages)
    good = math.nan
    for step, (stage, rate) in enumerate(schedule(stages)):
        if step < done:
            continue
        if time.monotonic() > ends_at:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids, lengths = padded(questions.documents(stage), device)
        loss, seen = loss_of(ids, lengths)
        good = good if math.isnan(seen) else seen
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
        optimizer.step()
        done = step + 1
        if done % 50 == 0 or done == total:
            print(
                f"{name} step {done}/{total}: loss {loss.item():.3f}, right {good:.3f}", flush=True
            )
    state[f"{name}_steps"] = done
    state[f"{name}_optimizer"] = optimizer.state_dict()
    return done == total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--longer", type=int, default=1, help="so many times the draft's steps")
    arguments = parser.parse_args()
    name = arguments.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    state_path = folder / "state.pt"
    state: dict[str, object] = torch.load(state_path) if state_path.exists() else {}
    ends_at = time.monotonic() + 60.0 * arguments.minutes
    begun = time.monotonic()

    torch.manual_seed(SEED)
    tokenizer = make_tokenizer(lines_of_library(SEED))
    target = Qwen3ForCausalLM(target_config()).to(device)
    draft = Draft().to(device)
    if state:
        target.load_state_dict(state["target"])  # type: ignore[arg-type]
        draft.load_state_dict(state["draft"])  # type: ignore[arg-type]
    steps = sum(int(str(state.get(f"{part}_steps", 0))) for part in ("target", "draft"))
    questions = Questions(tokenizer, SEED + steps)
    rng = random.Random(SEED + steps)
    common = {"questions": questions, "state": state, "device": device, "ends_at": ends_at}
    done = train(
        "target",
        target.parameters(),
        lambda ids, lengths: target_loss(target, ids, lengths),
        TARGET_STAGES,
        **common,
    )
    if done:
        target.requires_grad_(False)
        done = train(
            "draft",
            draft.parameters(),
            lambda ids, lengths: draft_loss(draft, target, ids, lengths, rng),
            tuple(replace(s, steps=s.steps * arguments.longer) for s in DRAFT_STAGES),
            **common,
        )
    state |= {"target": target.state_dict(), "draft": draft.state_dict()}
    torch.save(state, state_path)
    target.to(torch.bfloat16).save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    write_draft(folder / "draft", draft.plain(), tokenizer_of=folder / "target")
    print(
        f"{'trained' if done else 'not finished'} after {time.monotonic() - begun:.0f} s on {name}"
    )


if __name__ == "__main__":
    main()
