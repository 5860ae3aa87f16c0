"""What people do with a verdict: waive, decide again, replay, choose among branches."""
