//! Sources of a mixture, and the numbers of their samples in a run.

use std::sync::{Arc, OnceLock};

use penstock_types::ledger::SourceBook;

use crate::item::{Item, Origin};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePart {
    pub name: Arc<str>,
    pub weight: u32,
    /// First index of its samples.
    pub start: u64,
}

/// Sources of a mixture by ascending index, known once it is open; none for any other source. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct SourceParts(Arc<OnceLock<Vec<SourcePart>>>);

/// Numbers of samples by the source of a mixture.
#[derive(Debug, Default)]
pub(crate) struct PartBooks {
    parts: SourceParts,
    drawn: Vec<u64>,
    delivered: Vec<u64>,
}

impl SourceParts {
    /// Sets the parts; only the first call has an effect.
    pub(crate) fn set(&self, parts: Vec<SourcePart>) {
        self.0.get_or_init(|| parts);
    }

    fn known(&self) -> &[SourcePart] {
        self.0.get().map_or(&[], Vec::as_slice)
    }
}

impl PartBooks {
    pub(crate) fn of(parts: SourceParts) -> Self {
        Self { parts, ..Self::default() }
    }

    pub(crate) fn draw(&mut self, origin: &Origin) {
        count(self.parts.known(), &mut self.drawn, [*origin]);
    }

    pub(crate) fn deliver(&mut self, item: &Item) {
        count(self.parts.known(), &mut self.delivered, item.origins());
    }

    pub(crate) fn books(&self) -> Vec<SourceBook> {
        let of = |counts: &[u64], place: usize| counts.get(place).copied().unwrap_or(0);
        let book = |(place, part): (usize, &SourcePart)| SourceBook {
            name: part.name.to_string(),
            weight: part.weight,
            drawn: of(&self.drawn, place),
            delivered: of(&self.delivered, place),
            ..SourceBook::default()
        };
        self.parts.known().iter().enumerate().map(book).collect()
    }
}

fn count(parts: &[SourcePart], counts: &mut Vec<u64>, origins: impl IntoIterator<Item = Origin>) {
    if parts.is_empty() {
        return;
    }
    counts.resize(parts.len(), 0);
    for origin in origins {
        let place = parts.partition_point(|part| part.start <= origin.index);
        if let Some(count) = place.checked_sub(1).and_then(|place| counts.get_mut(place)) {
            *count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Sample;

    #[test]
    fn samples_are_counted_for_the_source_that_has_their_index() {
        let parts = SourceParts::default();
        let mut books = PartBooks::of(parts.clone());
        let origin = |index| Origin { index, ..Origin::default() };
        books.draw(&origin(0));
        assert_eq!(books.books(), []);
        let part = |name: &str, weight, start| SourcePart { name: name.into(), weight, start };
        parts.set(vec![part("a", 3, 0), part("b", 1, 10)]);
        [0, 9, 10].iter().for_each(|index| books.draw(&origin(*index)));
        let samples = [9, 11, 12].map(|index| Sample::new("", origin(index)));
        books.deliver(&Item::Batch(samples.into()));
        books.deliver(&Item::Sample(Sample::new("", origin(10))));
        let book = |name: &str, weight, drawn, delivered| SourceBook {
            name: name.to_owned(),
            weight,
            drawn,
            delivered,
            ..SourceBook::default()
        };
        assert_eq!(books.books(), [book("a", 3, 2, 1), book("b", 1, 1, 3)]);
    }
}
