"""One adapter an array library. None imports its library: an array in hand means that its library is loaded."""
