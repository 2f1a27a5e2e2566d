"""One file per arrow of the data flow."""
