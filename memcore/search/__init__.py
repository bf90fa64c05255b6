"""Search: what to change. Levers, waterfalls, solvers and sweeps."""
