"""What fine-tuning puts in place of a matrix: adapters, fewer bits, frozen parts."""
