"""Outputs in the making: beside their place, copied or calculated, proved, and moved there."""
