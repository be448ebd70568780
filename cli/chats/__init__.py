"""`dflash chats`: the saved chats."""
