"""HTTP, the step loop and what connects them."""
