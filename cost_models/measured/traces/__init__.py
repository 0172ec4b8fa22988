"""Traces of torch.profiler (Kineto): activity of each GPU in a step, as the parts that plans predict."""
