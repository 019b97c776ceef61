//! Vocabulary of tokens, and the splitting of texts into them.

use penstock_guest::prelude::*;

/// Tokens of a file: one per line; a token's number is that of its line, counted from 0.
///
/// A line break in a token is written `\n`, a carriage return `\r`, a tab `\t`, a backslash `\\`; other characters represent
/// themselves, including spaces. The lines `<0x00>` to `<0xFF>` are bytes, for text without another token. Other lines
/// between `<` and `>` are special: they match no text.
#[derive(Debug)]
pub struct Vocabulary {
    /// Prefix tree of the texts of all tokens; the first node is its root.
    nodes: Vec<Node>,
    specials: Vec<(String, i32)>,
    fallback: Fallback,
}

#[derive(Debug, Default)]
struct Node {
    token: Option<i32>,
    children: Vec<(u8, u32)>,
}

/// Tokens for text that has no other token.
#[derive(Debug)]
enum Fallback {
    /// A token for each byte.
    Bytes(Box<[i32; 256]>),
    /// One token for each unknown letter.
    Unknown(i32),
}

/// A text split into tokens.
#[derive(Debug, Default, PartialEq)]
pub struct Cut {
    /// Numbers of the tokens.
    pub tokens: Vec<i32>,
    /// Number of fallback tokens among `tokens`.
    pub fallback: usize,
}

/// Maximum number of tokens in a vocabulary.
const MOST_TOKENS: usize = 4 << 20;
/// Special token for unknown letters, in a vocabulary without tokens for bytes.
const UNKNOWN: &str = "<unk>";

impl Vocabulary {
    /// Reads a vocabulary file. Fails if a token is empty or occurs twice, or if fallback tokens are missing.
    pub fn read(file: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(file).context("the vocabulary is not UTF-8")?;
        let (mut nodes, mut specials, mut bytes) = (vec![Node::default()], Vec::new(), [None; 256]);
        for (number, line) in text.lines().enumerate() {
            ensure!(number < MOST_TOKENS, "the vocabulary has more than {MOST_TOKENS} tokens");
            let token = number as i32;
            let old = match Line::read(line).context(format_args!("line {} of the vocabulary", number + 1))? {
                Line::Byte(byte) => bytes[usize::from(byte)].replace(token),
                Line::Text(text) => insert(&mut nodes, text.as_bytes(), token),
                Line::Special(name) => {
                    let old = specials.iter().find(|(known, _)| *known == name).map(|(_, token)| *token);
                    specials.push((name, token));
                    old
                }
            };
            if let Some(old) = old {
                bail!("lines {} and {} of the vocabulary are both `{line}`", old + 1, number + 1);
            }
        }
        let missing = bytes.iter().filter(|token| token.is_none()).count();
        let unknown = specials.iter().find(|(name, _)| name == UNKNOWN).map(|(_, token)| *token);
        let fallback = match (missing, unknown) {
            (0, _) => Fallback::Bytes(Box::new(bytes.map(Option::unwrap_or_default))),
            (256, Some(unknown)) => Fallback::Unknown(unknown),
            (256, None) => bail!(
                "the vocabulary has neither `<0x00>` to `<0xFF>` nor `{UNKNOWN}`, one of which is needed for unknown text"
            ),
            _ => bail!("the vocabulary lacks {missing} of the 256 tokens `<0x00>` to `<0xFF>`"),
        };
        Ok(Self { nodes, specials, fallback })
    }

    /// Number of a special token. Fails if no special token has this name.
    pub fn special(&self, name: &str) -> Result<i32> {
        let found = self.specials.iter().find(|(known, _)| known == name);
        let Some((_, token)) = found else {
            let names: Vec<String> = self.specials.iter().map(|(name, _)| format!("`{name}`")).collect();
            bail!("the vocabulary has no token `{name}`; its special tokens are: {}", names.join(", "));
        };
        Ok(*token)
    }

    /// Splits a text into tokens: from left to right, always the longest token that matches.
    pub fn cut(&self, text: &str) -> Cut {
        let mut cut = Cut::default();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let length = match self.longest(rest.as_bytes()) {
                Some((token, length)) => {
                    cut.tokens.push(token);
                    length
                }
                None => {
                    let letter = &rest[..first.len_utf8()];
                    let before = cut.tokens.len();
                    match &self.fallback {
                        Fallback::Bytes(tokens) => {
                            cut.tokens.extend(letter.bytes().map(|byte| tokens[usize::from(byte)]));
                        }
                        Fallback::Unknown(token) => cut.tokens.push(*token),
                    }
                    cut.fallback += cut.tokens.len() - before;
                    letter.len()
                }
            };
            rest = &rest[length..];
        }
        cut
    }

    /// Longest token at the start of the text, and its length in bytes.
    fn longest(&self, text: &[u8]) -> Option<(i32, usize)> {
        let (mut node, mut found) = (&self.nodes[0], None);
        for (at, byte) in text.iter().enumerate() {
            let Some(child) = node.child(*byte) else { break };
            node = &self.nodes[child as usize];
            found = node.token.map(|token| (token, at + 1)).or(found);
        }
        found
    }
}

impl Node {
    fn child(&self, byte: u8) -> Option<u32> {
        let at = self.children.binary_search_by_key(&byte, |(byte, _)| *byte).ok()?;
        Some(self.children[at].1)
    }
}

/// Adds a token to the tree; returns an existing token with the same text.
fn insert(nodes: &mut Vec<Node>, text: &[u8], token: i32) -> Option<i32> {
    let mut node = 0;
    for &byte in text {
        let children = &nodes[node].children;
        node = match children.binary_search_by_key(&byte, |(byte, _)| *byte) {
            Ok(at) => children[at].1 as usize,
            Err(at) => {
                let new = nodes.len();
                nodes[node].children.insert(at, (byte, new as u32));
                nodes.push(Node::default());
                new
            }
        };
    }
    nodes[node].token.replace(token)
}

/// A line of the file.
enum Line {
    Byte(u8),
    Text(String),
    Special(String),
}

impl Line {
    fn read(line: &str) -> Result<Self> {
        let byte = |digits: &str| u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2);
        if let Some(byte) = line.strip_prefix("<0x").and_then(|line| line.strip_suffix('>')).and_then(byte) {
            return Ok(Self::Byte(byte));
        }
        if line.len() > 2 && line.starts_with('<') && line.ends_with('>') {
            return Ok(Self::Special(line.to_owned()));
        }
        ensure!(!line.is_empty(), "a token needs at least one character");
        let (mut text, mut letters) = (String::with_capacity(line.len()), line.chars());
        while let Some(letter) = letters.next() {
            text.push(match letter {
                '\\' => match letters.next() {
                    Some('n') => '\n',
                    Some('r') => '\r',
                    Some('t') => '\t',
                    Some('\\') => '\\',
                    _ => bail!("`{line}` has a backslash that is not followed by `n`, `r`, `t` or `\\`"),
                },
                letter => letter,
            });
        }
        Ok(Self::Text(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes() -> String {
        (0..=255).map(|byte: u8| format!("<0x{byte:02X}>\n")).collect()
    }

    fn refusal(file: &[u8]) -> String {
        Vocabulary::read(file).unwrap_err().message().to_owned()
    }

    #[test]
    fn the_longest_token_matches_and_bytes_encode_the_rest() {
        let vocabulary =
            Vocabulary::read(format!("{}the\nthere\n the\na\n\\n\n\\\\\n", bytes()).as_bytes()).unwrap();
        let cut = |text| vocabulary.cut(text).tokens;
        assert_eq!(cut("there"), [257]);
        assert_eq!(cut("thera"), [256, 0x72, 259], "back to `the`, then a byte and `a`");
        assert_eq!(cut("the the\n\\"), [256, 258, 260, 261]);
        assert_eq!(vocabulary.cut("é<eos>").tokens, [0xc3, 0xa9, 0x3c, 0x65, 0x6f, 0x73, 0x3e]);
        assert_eq!(vocabulary.cut("aé"), Cut { tokens: vec![259, 0xc3, 0xa9], fallback: 2 });
        assert!(cut("").is_empty());
    }

    #[test]
    fn without_bytes_an_unknown_letter_is_one_token() {
        let vocabulary = Vocabulary::read(b"<unk>\n<eos>\na\nab\n").unwrap();
        assert_eq!(vocabulary.cut("abéa<eos>").tokens, [3, 0, 2, 0, 0, 0, 0, 0]);
        assert_eq!(vocabulary.special("<eos>").unwrap(), 1);
        let error = vocabulary.special("<pad>").unwrap_err();
        assert_eq!(
            error.message(),
            "the vocabulary has no token `<pad>`; its special tokens are: `<unk>`, `<eos>`"
        );
    }

    #[test]
    fn errors_of_a_vocabulary_name_the_line() {
        assert_eq!(
            refusal(b"a\n"),
            "the vocabulary has neither `<0x00>` to `<0xFF>` nor `<unk>`, one of which is needed for unknown text"
        );
        assert_eq!(
            refusal(b"<0x00>\n<unk>\n"),
            "the vocabulary lacks 255 of the 256 tokens `<0x00>` to `<0xFF>`"
        );
        assert_eq!(refusal(b"<unk>\na\nb\na\n"), "lines 2 and 4 of the vocabulary are both `a`");
        assert_eq!(refusal(b"<unk>\n<unk>\n"), "lines 1 and 2 of the vocabulary are both `<unk>`");
        assert_eq!(
            refusal(b"<unk>\n\na\n"),
            "line 2 of the vocabulary: a token needs at least one character"
        );
        assert_eq!(
            refusal(b"\\x\n"),
            r"line 1 of the vocabulary: `\x` has a backslash that is not followed by `n`, `r`, `t` or `\`"
        );
        assert!(refusal(&[0xff]).starts_with("the vocabulary is not UTF-8: "));
        assert!(refusal(b"").contains("has neither"));
    }
}
