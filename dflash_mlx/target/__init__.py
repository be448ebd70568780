"""The target: an mlx-lm model that reads many rows at once and gives its hidden states."""
