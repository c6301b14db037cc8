"""The engine as it is seen from outside."""
