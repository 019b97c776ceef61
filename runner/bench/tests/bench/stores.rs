//! Real stores, with and without trouble.
