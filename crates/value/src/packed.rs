//! Cells: how one element, field or value lies in a leaf.
