"""Exact search for the best placement of a layout: label setting and integer programs."""
