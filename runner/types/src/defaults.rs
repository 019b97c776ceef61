//! Defaults that documents and states leave out when they are written.

/// True for a default that is not serialized, so that recipes of existing folders stay equal.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
