"""Types by rule: which tensors of a plan get another type of number, and which stay in float32."""
