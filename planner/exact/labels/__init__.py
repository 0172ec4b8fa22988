"""The best placement of a plain pipeline: labels pass from rank to rank, the timeline corrects what they know."""
