//! A compact list for millions of keys, and a counter of the names that a listing leaves out.

use tracing::warn;

/// Keys in order, stored in one string. Each key takes the bytes of its text and eight more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    text: String,
    /// End position of each key in `text`.
    ends: Vec<usize>,
}

impl Keys {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes that the keys take in memory.
    pub(crate) fn bytes(&self) -> u64 {
        (self.text.len() + size_of_val(&*self.ends)) as u64
    }

    pub fn push(&mut self, key: &str) {
        self.text.push_str(key);
        self.ends.push(self.text.len());
    }

    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.text[start..end])
    }

    pub fn last(&self) -> Option<&str> {
        self.get(self.len().checked_sub(1)?)
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    pub(crate) fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

/// Counter of the names that a listing leaves out.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    count: u64,
    first: Option<String>,
}

impl LeftOut {
    /// Counts a name; `None` for a name that cannot be decoded.
    pub(crate) fn add(&mut self, name: Option<String>) {
        self.count += 1;
        self.first = self.first.take().or(name);
    }

    /// Logs one warning if any names were left out; `what` describes them.
    pub(crate) fn warn(&mut self, store: &str, what: &str) {
        let Self { count, first } = std::mem::take(self);
        if count > 0 {
            warn!(store, left_out = count, first, "a listing left out {what}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_returned_unchanged() {
        let mut keys = Keys::default();
        assert_eq!((keys.get(0), keys.last()), (None, None));
        for key in ["a", "", "bc/d"] {
            keys.push(key);
        }
        assert_eq!(keys.iter().collect::<Vec<_>>(), ["a", "", "bc/d"]);
        assert_eq!((keys.get(3), keys.last(), keys.len()), (None, Some("bc/d"), 3));
    }
}
