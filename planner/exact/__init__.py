"""The best placement, proven: label setting and integer programs."""
