"""The axes of a layout as a rank runs them: one file or folder for each, named as in `cost_models.axes`."""
