"""What the operator does: from everything observed and the time to an ordered plan. Pure."""
