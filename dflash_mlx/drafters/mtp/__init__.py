"""Multi-token prediction (MTP) heads of Qwen3-Next and Qwen3.5 to 3.8 as drafters."""
