"""The pure part: vocabulary, the machine contract, `drive`. Standard library only."""
