"""The designed experiment that tells what a step costs: contexts x batches x prompt lengths."""
