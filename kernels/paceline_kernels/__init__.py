"""Operations on tensors: a reference that defines the result, and fast ways to it."""
