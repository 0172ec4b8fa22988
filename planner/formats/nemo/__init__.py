"""NeMo: its YAML of a GPT and recipes of Megatron Bridge."""
