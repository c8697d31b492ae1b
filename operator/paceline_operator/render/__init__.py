"""What the operator writes: manifests of children, each a pure function of its arguments."""
