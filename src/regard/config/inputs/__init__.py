"""Configs of front ends, by modality. Empty on purpose: positions import only one of these modules."""
