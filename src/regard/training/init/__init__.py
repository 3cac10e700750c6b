"""What a run starts from: pretrained weights, word vectors, frozen parameters, LoRA."""
