"""The ledger: bytes that passes move and kernels that they dispatch, counted without computing."""
