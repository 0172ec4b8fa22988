"""Train a small causal transformer on the CPU with an exported DeepSpeed file: what it reads, it runs.

torchrun --standalone --nproc-per-node 2 benchmarks/exporters/train_deepspeed.py ds.json SEQUENCE
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import deepspeed
import torch

VOCABULARY, WIDTH, STEPS = 256, 64, 8


class Small(torch.nn.Module):
    """Two blocks between an embedding and a head; returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        block = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.blocks = torch.nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        """The loss of predicting every next token."""
        x_BSD = self.embedding(tokens_BS[:, :-1])
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x_BSD.shape[1], dtype=x_BSD.dtype)
        logits_BSV = self.head(self.blocks(x_BSD, mask=mask, is_causal=True))
        return torch.nn.functional.cross_entropy(logits_BSV.flatten(0, 1).float(), tokens_BS[:, 1:].flatten())


def main() -> None:
    """Train, and print losses with what the engine runs."""
    file, length = Path(sys.argv[1]), int(sys.argv[2])
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    config = json.loads(file.read_text("utf-8"))
    config["optimizer"]["params"]["torch_adam"] = True  # no kernel to compile
    model = Small()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    rank = int(os.environ["RANK"])
    text = torch.arange(VOCABULARY).repeat(64)
    losses = []
    for _ in range(STEPS):
        for _ in range(engine.gradient_accumulation_steps()):
            part = text[31 * rank : 31 * rank + length + 1]
            tokens_BS = part.repeat(engine.train_micro_batch_size_per_gpu(), 1)
            loss = engine(tokens_BS)
            engine.backward(loss)
            engine.step()
        losses.append(round(float(loss.detach()), 4))
    if rank == 0:
        print(f"zero{engine.zero_optimization_stage()} on {engine.dp_world_size} ranks, losses {losses}")
        assert losses[-1] < losses[0]


if __name__ == "__main__":
    main()
