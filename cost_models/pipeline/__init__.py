"""What a pipeline's ranks cost, and the step and the peak that follow: for one layout and for a million."""
