"""What one exchange was: the border behind which measuring may fail, its timeline, its record."""
