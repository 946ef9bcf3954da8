"""Tasks that parse splits and write fragments, and the versions made of them."""
