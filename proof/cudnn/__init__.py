"""Asks cuDNN where it keeps the weights of recurrent networks, and compares its answers with the layout's table.

    grid      the networks in question
    answers   questions and answers: regions of a weight space, by pseudo-layer and linLayerID
    library   cuDNN's own functions, by ctypes
    asking    asks a library in a separate process
    table     the layout's table, answering the same questions
    compare   where two answers differ, and where torch's windows differ from the table
    record    all verdicts as one document

Nothing here imports torch; `proof.verify_layout` adds the answers of torch and the GPU.
"""
