"""Reference functions of the `small` level, one file a topic. Each file has functions and, last, ``INPUTS``:
how to draw the arguments of each. A task holds one function with the imports that it uses and nothing else."""
