"""The transformer of every shape in about 1,800 lines, importing only torch and config: an hour's reading.

    ids (B, N)
     │   token embedding                       inputs/text.py
    Tokens: vectors x (B, N, D) and a layout   tokens.py       order, coordinates, padding, documents
     │   positions                             positions.py    added to x, rotating q and k, or a bias on the scores
     │   trunk: `depth` blocks                 model.py
     │     x + attention(norm(x))              layers.py       q, k, v, out; cache.py keeps k and v of earlier tokens
     │       softmax(QK'/sqrt(d) + bias) V     kernels.py      only where the mask allows it: masks.py
     │     x + MLP(norm(x))                    layers.py       pre-norm; post-norm is norm(x + f(x))
     │   final norm                            model.py
     │   head                                  models/heads.py
    logits (B, N, V)

Read from the top down: model (Transformer, Trunk), layers (Block, Attention, MLP), kernels (the softmax, then which
kernel computes it), and what these use: tokens, masks, positions. Then init (first weights), cache (generation) and
hooks (recording and editing activations).
"""
