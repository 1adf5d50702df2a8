"""What was sent back, and by whom: every state change of a redrive."""
