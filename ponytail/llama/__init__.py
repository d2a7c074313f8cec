"""The only package that touches ctypes: llama.cpp, wrapped."""
