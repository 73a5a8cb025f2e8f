"""PTX on a CPU: text and bytes in, bytes and findings out. run.run() is the face; nothing knows of matrix products."""
