"""Thirty configurations of Megatron: models of every kind, each axis used and left out."""

from __future__ import annotations

from typing import NamedTuple


class Configuration(NamedTuple):
    """One job."""

    model: str
    gpus: int
    layout: str
    global_batch: int
    sequence: int


CONFIGURATIONS = tuple(
    Configuration(*row)
    for row in (
        ("megatron-1.7b", 32, "tp1 pp1 dp32 mbs2 zero0", 512, 2048),
        ("megatron-18b", 256, "tp8 pp1 dp32 mbs4 zero0 sp recompute=selective", 1024, 2048),
        ("megatron-22b", 8, "tp8 pp1 dp1 mbs4 zero0 sp recompute=selective", 4, 2048),
        ("megatron-22b", 8, "tp8 pp1 dp1 mbs4 zero0 recompute=full", 4, 2048),
        ("gpt3-175b", 64, "tp8 pp8 dp1 vpp3 mbs1 zero0 sp recompute=selective", 64, 2048),
        ("gpt3-175b", 1024, "tp8 pp8 dp16 vpp12 mbs1 zero1 sp recompute=selective", 1536, 2048),
        ("gpt3-175b", 1024, "tp8 pp16 dp8 mbs1 zero1 recompute=full", 1536, 2048),
        ("megatron-530b", 280, "tp8 pp35 dp1 vpp3 mbs1 zero0 sp recompute=selective", 280, 2048),
        ("megatron-1t", 512, "tp8 pp64 dp1 mbs1 zero0 sp recompute=selective", 512, 2048),
        ("llama2-7b", 8, "tp1 pp1 dp8 mbs1 zero1", 128, 4096),
        ("llama2-13b", 8, "tp2 pp1 dp4 mbs1 zero1 sp recompute=selective", 128, 4096),
        ("llama2-70b", 64, "tp4 pp4 dp4 vpp5 mbs1 zero1 sp recompute=selective", 128, 4096),
        ("llama3-8b", 8, "tp1 pp1 cp2 dp4 mbs1 zero1", 128, 8192),
        ("llama3-8b", 8, "tp2 pp1 dp4 mbs1 zero1 sp recompute=full", 128, 8192),
        ("llama3-70b", 64, "tp8 pp4 dp2 vpp5 mbs1 zero1 sp", 128, 8192),
        ("llama3-70b", 64, "tp4 pp4 cp2 dp2 vpp5 mbs1 zero1 sp recompute=selective", 128, 8192),
        ("llama3.1-405b", 504, "tp8 pp9 dp7 vpp7 mbs1 zero1 sp", 252, 8192),
        ("llama3.1-405b", 1152, "tp8 pp9 cp2 dp8 vpp7 mbs1 zero1 sp recompute=selective", 288, 8192),
        ("nemotron4-15b", 64, "tp4 pp1 dp16 mbs2 zero1 sp recompute=selective", 256, 4096),
        ("nemotron4-340b", 768, "tp8 pp12 dp8 vpp8 mbs1 zero1 sp recompute=selective", 288, 4096),
        ("qwen2-72b", 64, "tp8 pp4 dp2 mbs1 zero1 sp recompute=selective", 128, 4096),
        ("qwen3-32b", 32, "tp4 pp2 dp4 mbs1 zero1 sp recompute=full layers=32*2", 128, 4096),
        ("mixtral-8x7b", 64, "tp1 pp4 ep8 dp16 vpp8 mbs1 zero1", 256, 4096),
        ("mixtral-8x22b", 128, "tp2 pp8 ep8 dp8 mbs1 zero1 sp recompute=full", 256, 4096),
        ("mixtral-8x22b", 128, "tp4 pp8 ep4 dp4 vpp7 mbs1 zero1 sp recompute=selective", 256, 4096),
        ("qwen3-30b-a3b", 16, "tp1 pp1 ep8 dp16 mbs1 zero1 recompute=full", 128, 4096),
        (
            "qwen3-235b-a22b",
            256,
            "tp2 pp8 ep16 dp16 mbs1 zero1 sp recompute=full layers=12*6,11*2",
            256,
            4096,
        ),
        ("deepseek-v2-lite", 8, "tp1 pp1 ep8 dp8 mbs1 zero1 recompute=full", 128, 4096),
        ("deepseek-v2", 128, "tp1 pp4 ep32 dp32 mbs1 zero1 recompute=full layers=15*4", 256, 4096),
        ("deepseek-v3", 1024, "tp2 pp16 ep32 dp32 mbs1 zero1 sp recompute=full layers=4*13,3*3", 512, 4096),
    )
)
