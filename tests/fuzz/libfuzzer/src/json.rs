//! Mutates JSON as a tree, so that it remains JSON: a random change of a byte rarely does.

use libfuzzer_sys::fuzzer_mutate;
use serde_json::{Map, Number, Value, json};

/// Mutates the JSON text in `data`; if it is not JSON, and in one of four other cases, mutates its bytes instead. `words` are the
/// words with a meaning in the document.
pub(crate) fn change(data: &mut [u8], size: usize, max_size: usize, seed: u32, words: &[&str]) -> usize {
    let mut dice = Dice(u64::from(seed) + 1);
    let tree = serde_json::from_slice::<Value>(&data[..size]).ok().filter(|_| dice.below(4) > 0);
    if let Some(mut tree) = tree {
        for _ in 0..=dice.below(3) {
            let node = dice.below(count(&tree));
            if let Some(node) = nth(&mut tree, &mut { node }) {
                change_node(node, &mut dice, words);
            }
        }
        let text = tree.to_string();
        if text.len() <= max_size {
            data[..text.len()].copy_from_slice(text.as_bytes());
            return text.len();
        }
    }
    fuzzer_mutate(data, size, max_size)
}

fn change_node(node: &mut Value, dice: &mut Dice, words: &[&str]) {
    let word = words[dice.below(words.len())];
    match (dice.below(6), node) {
        (0, Value::Object(members)) => {
            members.insert(word.into(), value(dice, words));
        }
        (1, Value::Object(members)) if !members.is_empty() => {
            let key = members.keys().nth(dice.below(members.len())).cloned().unwrap_or_default();
            members.shift_remove(&key);
        }
        (2, Value::Object(members)) if !members.is_empty() => {
            let renamed = dice.below(members.len());
            let rename =
                |(number, (key, value))| (if number == renamed { word.to_owned() } else { key }, value);
            *members = std::mem::take(members).into_iter().enumerate().map(rename).collect::<Map<_, _>>();
        }
        (0 | 1, Value::Array(elements)) => {
            elements.insert(dice.below(elements.len() + 1), value(dice, words))
        }
        (2, Value::Array(elements)) if !elements.is_empty() => {
            let element = elements[dice.below(elements.len())].clone();
            elements.push(element);
        }
        (3, Value::Array(elements)) if !elements.is_empty() => {
            elements.remove(dice.below(elements.len()));
        }
        (4, node) => *node = json!({ word: node.take() }),
        (_, node) => *node = value(dice, words),
    }
}

fn value(dice: &mut Dice, words: &[&str]) -> Value {
    match dice.below(14) {
        0 => Value::Null,
        1 => json!(dice.below(2) == 0),
        2 => json!(0),
        3 => json!(1),
        4 => json!(dice.next()),
        5 => json!(-1),
        6 => json!(u32::MAX),
        7 => Number::from_f64(f64::from_bits(dice.next())).map_or(Value::Null, Value::Number),
        8 => json!(0.5),
        9 => json!({}),
        10 => json!([]),
        11 => json!({ words[dice.below(words.len())]: {} }),
        12 => json!(["", "../x", "a\u{1b}[31m\n", "\u{202e}", "sha256:", "a@1", "~0/~1"][dice.below(7)]),
        _ => json!(words[dice.below(words.len())]),
    }
}

fn count(node: &Value) -> usize {
    1 + match node {
        Value::Object(members) => members.values().map(count).sum(),
        Value::Array(elements) => elements.iter().map(count).sum(),
        _ => 0_usize,
    }
}

/// Node number `left` of the tree, counted from its root.
fn nth<'a>(node: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(node);
    }
    *left -= 1;
    match node {
        Value::Object(members) => members.values_mut().find_map(|member| nth(member, left)),
        Value::Array(elements) => elements.iter_mut().find_map(|element| nth(element, left)),
        _ => None,
    }
}

/// Random numbers that depend on the seed alone, so that a mutation is reproducible (xorshift64*).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        // Uses the upper half: the lowest bits of a xorshift are its weakest.
        (self.next() >> 32) as usize % bound
    }
}
