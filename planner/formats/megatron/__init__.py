"""Megatron-LM and what Megatron Core's trainers share: scripts that start `pretrain_gpt.py`, read and written."""
