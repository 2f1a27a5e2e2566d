"""A recipe to core and plugin wheels: plan, compile, link, package."""
