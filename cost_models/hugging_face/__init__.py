"""Reading Hugging Face `config.json` files, family by family."""
