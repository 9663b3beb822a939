"""The groups of `instar`'s commands, one file each. Heavy imports happen inside them."""
