"""What lies on the disk: files that appear whole, lines of JSON, files that others wrote, and temporary folders."""
