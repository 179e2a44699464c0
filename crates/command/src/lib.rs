//! What a command is, the lookup table, and the families.
