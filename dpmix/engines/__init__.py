"""What holds the events and turns a mixture into sufficient statistics."""
