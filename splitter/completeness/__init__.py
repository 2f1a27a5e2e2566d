"""Whether a folder of wheels is a whole release: what nobody should publish without asking."""
