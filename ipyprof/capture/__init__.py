"""The only room with torch: run the cell, find its steps, record them."""
