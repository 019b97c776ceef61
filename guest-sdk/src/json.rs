//! JSON text built at compile time: the manifest is a static section of the module.

/// A piece of JSON text, or a sequence of pieces.
#[derive(Clone, Copy, Debug)]
pub enum Json {
    /// Text, used as it is.
    Text(&'static str),
    /// Pieces, joined in order.
    Parts(&'static [Json]),
}

impl Json {
    /// Length of the text in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no caller needs to test for an empty piece")]
    pub const fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Parts(parts) => {
                let (mut sum, mut at) = (0, 0);
                while at < parts.len() {
                    sum += parts[at].len();
                    at += 1;
                }
                sum
            }
        }
    }

    /// Bytes of the text; `N` must be [`Json::len`].
    pub const fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        let end = self.write(&mut out, 0);
        assert!(end == N, "the array is as long as the text");
        out
    }

    const fn write<const N: usize>(&self, out: &mut [u8; N], mut at: usize) -> usize {
        match self {
            Self::Text(text) => {
                let (bytes, mut from) = (text.as_bytes(), 0);
                while from < bytes.len() {
                    out[at] = bytes[from];
                    (at, from) = (at + 1, from + 1);
                }
            }
            Self::Parts(parts) => {
                let mut part = 0;
                while part < parts.len() {
                    at = parts[part].write(out, at);
                    part += 1;
                }
            }
        }
        at
    }

    /// Text of all pieces, for tests of a stage's manifest.
    #[cfg(not(target_family = "wasm"))]
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => (*text).to_owned(),
            Self::Parts(parts) => parts.iter().map(Self::text).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_in_order_at_compile_time() {
        const LIST: Json = Json::Parts(&[
            Json::Text("["),
            Json::Parts(&[Json::Text("1"), Json::Text(",2")]),
            Json::Text("]"),
        ]);
        static BYTES: [u8; LIST.len()] = LIST.bytes();
        assert_eq!(&BYTES, b"[1,2]");
        assert_eq!(LIST.text(), "[1,2]");
    }
}
