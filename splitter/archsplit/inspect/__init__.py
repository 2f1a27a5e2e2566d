"""Reports on device code as text, JSON, HTML and SVG; advice on targets."""
