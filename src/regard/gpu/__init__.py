"""A step of a decoder on a GPU in few loops: for one token a row, starting a loop takes longer than running it."""
