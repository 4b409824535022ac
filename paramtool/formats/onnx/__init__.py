"""ONNX: protobuf messages, the tensors in them, and what recurrent nodes say of their networks."""
