"""Asking cuDNN where it keeps the weights of recurrent networks, and setting its answers beside the layout's table.

    grid      the networks that are asked for
    answers   what is asked, and answered: regions of a weight space, by pseudo-layer and linLayerID
    library   cuDNN's own functions, by ctypes
    asking    a library asked in a process of its own
    table     what the layout's table answers to the same questions
    compare   where two answers differ, and where torch's windows do
    record    all verdicts as one document

Nothing here imports torch; `paramtool.proof.verify_layout` adds what torch and the GPU themselves say.
"""
