//! In-memory size of a JSON document, estimated from its text.

/// Upper bound of the memory of one name or value, in bytes: twice a `serde_json::Value` with its share of the surrounding
/// container, since a type deserialized from a value may hold a full copy. Lists and objects of one member cost the most.
const NODE_BYTES: usize = 512;

/// Counts names, values and bytes of a JSON text piece by piece, without building a tree.
#[derive(Clone, Copy, Debug, Default)]
pub struct JsonSize {
    bytes: usize,
    nodes: usize,
    is_in_text: bool,
    is_escaped: bool,
}

impl JsonSize {
    /// Measures a whole text.
    pub fn of(text: &[u8]) -> Self {
        let mut size = Self::default();
        size.add(text);
        size
    }

    /// Adds the next piece of the text.
    pub fn add(&mut self, piece: &[u8]) {
        self.bytes += piece.len();
        for byte in piece {
            if self.is_escaped {
                self.is_escaped = false;
            } else if self.is_in_text {
                self.is_in_text = *byte != b'"';
                self.is_escaped = *byte == b'\\';
            } else {
                self.is_in_text = *byte == b'"';
                self.nodes += usize::from(matches!(byte, b',' | b':' | b'[' | b'{'));
            }
        }
    }

    /// Number of names and values, without the outermost one; an empty list or object counts as two.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Upper bound, in bytes, of the memory of the text or of its tree, together with the types deserialized from it.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.saturating_mul(2).saturating_add(self.nodes.saturating_mul(NODE_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn count(value: &Value) -> usize {
        match value {
            Value::Array(elements) => 1 + elements.iter().map(count).sum::<usize>(),
            Value::Object(members) => 1 + members.values().map(|value| 1 + count(value)).sum::<usize>(),
            _ => 1,
        }
    }

    #[test]
    fn every_name_and_value_is_counted_and_string_contents_are_ignored() {
        for (text, nodes) in [
            ("0", 0),
            (r#""a,[{:\",[""#, 0),
            (r#""\\",[1]"#, 2),
            ("[]", 1),
            ("[0,0,0]", 3),
            (r#"{"a":[{"b":1},{"c":[2,3]}]}"#, 10),
        ] {
            assert_eq!(JsonSize::of(text.as_bytes()).nodes(), nodes, "{text}");
            if let Ok(value) = serde_json::from_str(text) {
                assert!(count(&value) <= nodes + 1, "{text}");
            }
        }
    }

    #[test]
    fn a_text_in_pieces_counts_the_same_as_in_one() {
        let text = br#"{"a\\\"": ["x,\u005b", [1, {}]], "b": "\\"}"#;
        for cut in 0..text.len() {
            let mut size = JsonSize::of(&text[..cut]);
            size.add(&text[cut..]);
            assert_eq!(size.nodes(), JsonSize::of(text).nodes());
        }
    }
}
