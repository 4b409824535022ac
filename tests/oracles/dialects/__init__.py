"""Oracles of the dialects: models of transformers, torch, timm and MXNet, and equations that are written here."""
