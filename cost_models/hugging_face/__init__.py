"""Reading and writing of Hugging Face `config.json` files, by model family."""
