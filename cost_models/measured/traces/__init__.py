"""Traces of torch.profiler (Kineto): what each GPU does at each moment of a step, as parts that plans predict."""
