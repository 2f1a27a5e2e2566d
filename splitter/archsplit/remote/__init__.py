"""Steps on other machines: closed actions, and the build engines that run them."""
