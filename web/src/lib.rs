//! The HTTP API and the pages of `penstock serve`.
#![warn(missing_docs)]
