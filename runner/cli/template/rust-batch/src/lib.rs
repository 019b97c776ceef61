//! A stage for Penstock: see README.md.

use penstock_guest::IntoOutcome;
use penstock_guest::prelude::*;

/// Params that a pipeline may set.
#[derive(Params)]
pub struct Settings {
    /// Maximum length of a row, in bytes; longer files are cut.
    #[param(default = 256, min = 1)]
    pub longest: usize,
    /// Byte that fills the rest of a row if the file is shorter.
    #[param(default = 0)]
    pub fill: u8,
}

/// Makes rows of equal length from the files of a batch, so that `collate` can stack them.
pub struct Pad {
    longest: usize,
    fill: u8,
}

#[stage(wants("bytes"), makes("row", "length"))]
impl BatchStage for Pad {
    type Params = Settings;

    fn new(settings: &Settings) -> Result<Self> {
        Ok(Self {
            longest: settings.longest,
            fill: settings.fill,
        })
    }

    fn process(&mut self, items: Vec<Item>) -> Vec<Outcome> {
        let lengths = items
            .iter()
            .filter_map(|item| item.bytes("bytes").ok())
            .map(<[u8]>::len);
        let width = lengths.max().unwrap_or(0).min(self.longest);
        items
            .into_iter()
            .map(|item| self.pad(item, width).into_outcome())
            .collect()
    }
}

impl Pad {
    fn pad(&self, mut item: Item, width: usize) -> Result<Item> {
        let mut row = item.take_bytes("bytes")?;
        let length = row.len().min(width);
        row.resize(width, self.fill);
        item.set("row", Tensor::new([width as u32], row)?);
        item.set("length", length as i64);
        Ok(item)
    }
}

#[cfg(test)]
mod tests {
    use penstock_guest::testing::Instance;

    use super::*;

    fn rows(files: &[&[u8]], params: &str) -> Vec<Vec<u8>> {
        let mut stage = Instance::<Pad>::new(params).expect("the params fit");
        let items = files
            .iter()
            .map(|file| Item::new("a.txt").with("bytes", *file));
        let outcomes = stage.process(items.collect());
        let row = |outcome: &Outcome| match outcome {
            Outcome::Keep(item) => item.tensor::<u8>("row").unwrap().as_slice().to_vec(),
            other => panic!("{other:?}"),
        };
        outcomes.iter().map(row).collect()
    }

    #[test]
    fn rows_are_as_long_as_the_longest_file() {
        assert_eq!(rows(&[b"abc", b"d"], "{}"), [b"abc", b"d\0\0"]);
    }

    #[test]
    fn no_row_is_longer_than_allowed() {
        let params = r#"{"longest": 2, "fill": 45}"#;
        assert_eq!(rows(&[b"abc", b"d"], params), [b"ab", b"d-"]);
    }

    #[test]
    fn a_sample_without_bytes_costs_only_itself() {
        let mut stage = Instance::<Pad>::new("{}").expect("the params fit");
        let outcomes = stage.process(vec![
            Item::new("a.txt"),
            Item::new("b.txt").with("bytes", &b"b"[..]),
        ]);
        assert!(matches!(
            outcomes[..],
            [Outcome::Failed(_), Outcome::Keep(_)]
        ));
    }
}
