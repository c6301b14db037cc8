"""How many bytes a model makes the GPU read, and the speed limit that follows from them."""
