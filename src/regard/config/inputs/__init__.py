"""Configs of front ends, by modality. Empty on purpose: positions need one of these modules alone."""
