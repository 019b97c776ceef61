//! What people are told, whatever was wrong.

/// Longest message that a terminal and a log can bear, in bytes.
const MAX_MESSAGE_BYTES: usize = 4 << 10;

/// Panics unless the message is one that can be shown: said, of a bearable length, and inert in a terminal.
pub(crate) fn assert_fit_for_people(message: &str) {
    assert!(!message.is_empty(), "nothing is said");
    assert!(message.len() <= MAX_MESSAGE_BYTES, "a message of {} bytes: {message:.200}...", message.len());
    let acting = message.chars().find(|character| character.is_control());
    assert_eq!(acting, None, "a control character in {message:?}");
}
