"""Search: what to change, and what to book. Levers, waterfalls, solvers, sweeps and searches."""
