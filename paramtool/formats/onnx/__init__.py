"""ONNX: protobuf messages, the tensors in them, and the networks of recurrent nodes."""
