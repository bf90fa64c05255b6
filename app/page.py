"""Memplan in the browser: what Streamlit runs anew for every change. main.py serves it.

No function is made here or in a view: it and all that the run has made would keep each other until
Python looks for cycles.
"""

from app import frame

frame.draw()
