//! Answers that no correct compiler generates, and the errors of their samples. In each case the next sample succeeds.

use penstock_fuzz::{Answer, BASE, Field, Item, Key, Outcome, Patch, Value, outcome_of};

/// Answer that keeps one sample with these fields.
fn keeping(fields: Vec<Field>) -> Answer {
    let outcome = Outcome::Keep(Item { key: Key::Given(0), seed: 0, fields });
    Answer { outcomes: vec![outcome], ..Answer::default() }
}

fn field(value: Value) -> Field {
    Field { name: "x".into(), value }
}

/// Answer that keeps one sample, with `value` written over it: the list of outcomes is at 0 (address) and 4 (length), the outcome
/// at 16, its item at 24 (key at 24 and 28, fields at 40 and 44).
fn patched(at: u16, value: u32) -> Answer {
    let patch = Patch { at, value, is_byte: false };
    Answer { patches: vec![patch], ..keeping(vec![field(Value::Int(1))]) }
}

#[test]
fn a_correct_answer_is_accepted() {
    assert_eq!(outcome_of(&keeping(vec![field(Value::Int(1))])), "1 out");
    assert_eq!(
        outcome_of(&Answer { outcomes: vec![Outcome::Many(Vec::new())], ..Answer::default() }),
        "dropped"
    );
}

#[test]
fn pointers_out_of_memory_break_the_contract() {
    let address = |address| outcome_of(&Answer { address: Some(address), ..keeping(Vec::new()) });
    insta::assert_snapshot!(address(0x7fff_fff8), @"contract: returned values that cannot be read: pointer out of bounds of memory");
    insta::assert_snapshot!(address(BASE + 2), @"contract: returned values that cannot be read: return pointer not aligned");
    insta::assert_snapshot!(outcome_of(&patched(0, u32::MAX - 7)), @"contract: returned values that cannot be read: list pointer/length out of bounds of memory");
    insta::assert_snapshot!(outcome_of(&patched(0, BASE + 1)), @"contract: returned values that cannot be read: list pointer is not aligned");
    insta::assert_snapshot!(outcome_of(&patched(24, 0x7fff_ffff)), @"contract: returned values that cannot be read: string pointer/length out of bounds of memory");
}

#[test]
fn lengths_beyond_memory_break_the_contract() {
    insta::assert_snapshot!(outcome_of(&patched(4, u32::MAX)), @"contract: returned values that cannot be read: list pointer/length out of bounds of memory");
    insta::assert_snapshot!(outcome_of(&patched(28, u32::MAX)), @"contract: returned values that cannot be read: string pointer/length out of bounds of memory");
    insta::assert_snapshot!(outcome_of(&patched(44, u32::MAX)), @"contract: returned values that cannot be read: list pointer/length out of bounds of memory");
    insta::assert_snapshot!(outcome_of(&patched(44, 4_000_000)), @"contract: returned values that cannot be read: list pointer/length out of bounds of memory");
}

#[test]
fn a_null_pointer_is_an_address_like_any_other() {
    // The memory at address 0 contains only zeros, which is an empty list of outcomes.
    insta::assert_snapshot!(outcome_of(&Answer { address: Some(0), ..keeping(Vec::new()) }), @"contract: returned 0 outcomes instead of 1, one per sample");
    insta::assert_snapshot!(outcome_of(&patched(28, 0)), @"contract: returned an empty key");
}

#[test]
fn an_answer_may_overlap_the_input_or_itself() {
    // The key is read from the fields, and the list of fields contains itself.
    insta::assert_snapshot!(outcome_of(&patched(24, BASE)), @"1 out");
    insta::assert_snapshot!(outcome_of(&patched(40, BASE)), @"contract: returned values that cannot be read: unexpected discriminant: 104");
}

#[test]
fn discriminants_that_the_contract_does_not_know_break_it() {
    insta::assert_snapshot!(outcome_of(&patched(16, 5)), @"contract: returned values that cannot be read: unexpected discriminant: 5");
    let dtype = Value::Tensor { dtype: 255, shape: vec![1], data: vec![0], fits: false };
    insta::assert_snapshot!(outcome_of(&keeping(vec![field(dtype)])), @"contract: returned values that cannot be read: unexpected discriminant: 255");
}

#[test]
fn text_that_is_not_utf_8_breaks_the_contract() {
    insta::assert_snapshot!(outcome_of(&keeping(vec![field(Value::Text(bytes(b"\xff\xfe")))])), @"contract: returned values that cannot be read: invalid utf-8 sequence of 1 bytes from index 0");
    let key = Outcome::Keep(Item { key: Key::Made(bytes(b"\xed\xa0\x80")), seed: 0, fields: Vec::new() });
    insta::assert_snapshot!(outcome_of(&Answer { outcomes: vec![key], ..Answer::default() }), @"contract: returned values that cannot be read: invalid utf-8 sequence of 1 bytes from index 0");
}

fn bytes(bytes: &[u8]) -> penstock_fuzz::Text {
    penstock_fuzz::Text::Bytes(bytes.to_vec())
}

#[test]
fn an_allocator_that_lies_costs_the_sample_that_was_passed_to_it() {
    let lying = |lie| outcome_of(&Answer { lie: Some(lie), ..keeping(Vec::new()) });
    insta::assert_snapshot!(lying(u32::MAX), @"1 out, then contract: returned values that cannot be read: realloc return: result not aligned");
    insta::assert_snapshot!(lying(0x7fff_fff8), @"1 out, then contract: returned values that cannot be read: realloc return: beyond end of memory");
    insta::assert_snapshot!(lying(3), @"1 out, then contract: returned values that cannot be read: realloc return: result not aligned");
    // A null pointer, and one address for every allocation, so that the host overwrites what it wrote before.
    insta::assert_snapshot!(lying(0), @"1 out, then bug: accessed memory out of bounds: a bad pointer or index; in `function 2`");
}

#[test]
fn a_trap_while_the_answer_is_freed_costs_the_sample() {
    insta::assert_snapshot!(outcome_of(&Answer { traps_after: true, ..keeping(Vec::new()) }), @"bug: reached `unreachable`: it panicked or aborted without a message (the SDK's panic hook sends one); in `function 3`");
}
