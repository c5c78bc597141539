"""The part of the kernel package that NGRAM asks for."""

from __future__ import annotations

import torch


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_lengths: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    next_token: torch.Tensor,
    next_sibling: torch.Tensor,
    batch_size: int,
    draft_tokens: int,
) -> None:
    """Positions and links of draft trees from which node attends to which.

    Row i of a tree's mask names the ancestors of node i and i itself; the last ancestor is its
    parent, their number its depth.
    """
    masks = tree_mask.reshape(batch_size, draft_tokens, draft_tokens).bool().tolist()
    flat = positions.view(-1)
    for request, (mask, length) in enumerate(zip(masks, verified_lengths.tolist(), strict=True)):
        first = request * draft_tokens
        children, siblings = [-1] * draft_tokens, [-1] * draft_tokens
        for node in reversed(range(draft_tokens)):
            ancestors = [other for other in range(node) if mask[node][other]]
            flat[first + node] = length + len(ancestors)
            if ancestors:
                siblings[node] = children[ancestors[-1]]
                children[ancestors[-1]] = node
        retrieve_index[request] = torch.arange(first, first + draft_tokens)
        next_token[request] = torch.tensor(children)
        next_sibling[request] = torch.tensor(siblings)
