"""Pure text: templates, stop strings, UTF-8.  Knows no llama.cpp and no engine."""
