"""The hour: one transformer for every shape, in torch alone.

Read in this order: tokens (what a model is given), masks (who may look at whom), positions (where a token stands),
kernels (how attention is computed), layers (the block), model (the whole), init (how it begins), cache (generation),
watch (looking inside). Ids become tokens in `regard.inputs.text`, vectors become logits in `regard.heads`.
"""
