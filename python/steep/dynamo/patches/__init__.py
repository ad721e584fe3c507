"""What Steep changes in Dynamo while it captures, one subject a file."""
