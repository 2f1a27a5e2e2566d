"""Description of a set of wheels, built or split: identity, report, checks."""
