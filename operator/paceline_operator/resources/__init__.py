"""What the operator reads: objects of the API as typed, checked values. Pure."""
