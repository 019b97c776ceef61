//! Check of messages that users see.

/// Maximum length of a message for terminals and logs, in bytes.
const MAX_MESSAGE_BYTES: usize = 4 << 10;

/// Panics unless the message is not empty, not too long, and without control characters.
pub(crate) fn assert_printable(message: &str) {
    assert!(!message.is_empty(), "the message is empty");
    assert!(message.len() <= MAX_MESSAGE_BYTES, "a message of {} bytes: {message:.200}...", message.len());
    let acting = message.chars().find(|character| character.is_control());
    assert_eq!(acting, None, "a control character in {message:?}");
}
