"""Methods that the papers compare contrastive learning with."""
