//! Size of a JSON document in memory, counted in its text.

/// Memory of one name or value of a document, in bytes at most: twice a `serde_json::Value` with its share of the container around
/// it, as what is read from a value may hold all of it again. Lists and objects of one member are the dearest.
const NODE_BYTES: usize = 512;

/// Counts names, values and bytes of a JSON text piece by piece, without building any of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct JsonSize {
    bytes: usize,
    nodes: usize,
    is_in_text: bool,
    is_escaped: bool,
}

impl JsonSize {
    /// Counts a whole text.
    pub fn of(text: &[u8]) -> Self {
        let mut size = Self::default();
        size.add(text);
        size
    }

    /// Counts the next piece of the text.
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

    /// Names and values, the outermost one left out; an empty list or object counts as two.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Memory of the text, or of its tree, together with what is read from it, in bytes at most.
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
    fn no_name_or_value_is_missed_and_texts_are_passed_over() {
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
    fn pieces_count_as_the_whole_does() {
        let text = br#"{"a\\\"": ["x,\u005b", [1, {}]], "b": "\\"}"#;
        for cut in 0..text.len() {
            let mut size = JsonSize::of(&text[..cut]);
            size.add(&text[cut..]);
            assert_eq!(size.nodes(), JsonSize::of(text).nodes());
        }
    }
}
