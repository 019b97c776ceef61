//! A stage for Penstock: see README.md.

use penstock_guest::prelude::*;

/// Params that a pipeline may set.
#[derive(Params)]
pub struct Settings {
    /// Length of a sequence, in bytes.
    #[param(default = 64, min = 1)]
    pub length: usize,
}

/// Concatenates files and cuts them into sequences of equal length; the last sequence of an epoch is filled with zeros.
pub struct Pack {
    length: usize,
    waiting: Vec<u8>,
}

#[stage(wants("bytes"), makes("tokens"))]
impl StatefulStage for Pack {
    type Params = Settings;

    fn new(settings: &Settings) -> Result<Self> {
        Ok(Self {
            length: settings.length,
            waiting: Vec::new(),
        })
    }

    fn process(&mut self, mut item: Item) -> Result<Outcome> {
        self.waiting.extend(item.take_bytes("bytes")?);
        let mut packed = Vec::new();
        while self.waiting.len() >= self.length {
            packed.push(self.next(item.child(packed.len())));
        }
        Ok(match packed.is_empty() {
            true => Outcome::Held,
            false => Outcome::Many(packed),
        })
    }

    fn finish(&mut self) -> Vec<Item> {
        match self.waiting.is_empty() {
            true => Vec::new(),
            false => vec![self.next(Item::new("last"))],
        }
    }
}

impl Pack {
    /// Turns `item` into an item with the oldest waiting bytes as its sequence.
    fn next(&mut self, item: Item) -> Item {
        let mut sequence = Tensor::zeros([self.length as u32]);
        let bytes = self.waiting.drain(..self.length.min(self.waiting.len()));
        for (token, byte) in sequence.as_mut_slice().iter_mut().zip(bytes) {
            *token = byte;
        }
        item.with("tokens", sequence)
    }
}

#[cfg(test)]
mod tests {
    use penstock_guest::testing::Instance;

    use super::*;

    fn file(bytes: &[u8]) -> Item {
        Item::new("a.txt").with("bytes", bytes)
    }

    fn tokens(item: &Item) -> &[u8] {
        let Some(Value::Tensor(tokens)) = item.get("tokens") else {
            panic!("{item:?}");
        };
        &tokens.data
    }

    #[test]
    fn files_are_packed_without_gaps_and_the_rest_is_filled() {
        let mut stage = Instance::<Pack>::new(r#"{"length": 4}"#).expect("the params fit");
        let outcomes = stage.process(vec![file(b"abc"), file(b"defghi")]);
        let [Outcome::Held, Outcome::Many(packed)] = &outcomes[..] else {
            panic!("{outcomes:?}");
        };
        let packed: Vec<&[u8]> = packed.iter().map(tokens).collect();
        assert_eq!(packed, [b"abcd", b"efgh"]);
        let last = stage.finish();
        assert_eq!(last.iter().map(tokens).collect::<Vec<_>>(), [b"i\0\0\0"]);
        assert!(stage.finish().is_empty(), "epochs never mix");
    }
}
