"""Folders of torch.distributed.checkpoint: `.metadata`, and files with the tensors of each rank."""
