"""What a profile does not know: how far predictions of it are off, and on which layouts they were ever tried."""
