"""cuBLASLt through ctypes: the library, a product as it sees it, and its algorithms."""
