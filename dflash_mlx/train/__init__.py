"""Training a DFlash drafter for a target: prompts -> answers -> blocks -> a drafter folder."""
