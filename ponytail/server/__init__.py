"""HTTP: one generate handler for all dialects, health, limits."""
