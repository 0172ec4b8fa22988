"""What the functions of the API return: each answer as text, as a frame, as JSON, and as a picture."""
