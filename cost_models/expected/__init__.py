"""What a step should take once runs like it were timed: expected seconds, their 90 % interval, the nearest runs."""
