"""Steps on other machines: actions that list all their inputs, and the engines that run them."""
