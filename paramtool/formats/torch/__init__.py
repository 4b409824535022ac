"""Files of torch.save in every form, and TorchScript archives: read and written without torch."""
