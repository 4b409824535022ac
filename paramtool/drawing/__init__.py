"""Figures and pages of them, as SVG and HTML: plain data in, text out; nothing here knows what a checkpoint is."""
