"""The pictures of the documentation, drawn from the program's own tables and graphs; `make_pictures.py` writes them."""
