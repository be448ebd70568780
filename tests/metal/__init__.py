"""Metal without a Mac: kernels run, checked and counted on the CPU. See README.md."""
