"""A static simple index: a folder of wheels and pages that any web server can serve."""
