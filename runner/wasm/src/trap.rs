//! Messages for failed calls of guests, written for the author of the module.

use std::collections::BTreeSet;
use std::fmt::Write;

use penstock_engine::ports::Fault;
use penstock_types::run::FailureClass;
use penstock_types::text::printable;
use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace};

use crate::error::mib;
use crate::limits::{Kill, MAX_CALL_OUTPUT_BYTES, MAX_REASON_BYTES};

const SHOWN_FRAMES: usize = 6;
const SHOWN_FRAME_BYTES: usize = 100;
/// Minimum number of stack frames of a trap that is regarded as a recursion.
const RECURSION_FRAMES: usize = 16;
/// Maximum number of distinct functions in the stack frames of a recursion.
const RECURSION_NAMES: usize = 4;
/// Functions of the Rust panic machinery, and modules that contain only such functions.
const MACHINERY: [&str; 9] = [
    "__rustc",
    "abort",
    "console_error_panic_hook",
    "core::panicking",
    "rust_begin_unwind",
    "rust_panic",
    "std::panicking",
    "std::process::abort",
    "std::sys",
];

/// Reasons why a call returned no result. The instance must be dropped.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CallEnd {
    Stopped,
    /// The module caused the failure.
    Fault(Fault),
}

impl From<Fault> for CallEnd {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Kill> for CallEnd {
    fn from(kill: Kill) -> Self {
        let class = match kill {
            Kill::Stopped => return Self::Stopped,
            Kill::UndeclaredCounter { .. } | Kill::CounterValue { .. } => FailureClass::Contract,
            Kill::Deadline { .. }
            | Kill::WallClock { .. }
            | Kill::Memory { .. }
            | Kill::OwnMemory { .. }
            | Kill::Table { .. }
            | Kill::OwnTable { .. } => FailureClass::Bug,
        };
        Self::Fault(Fault::new(class, kill.to_string()))
    }
}

impl CallEnd {
    /// Prefixes the message of a fault with the place where it occurred.
    pub(crate) fn at(self, place: &str) -> Self {
        match self {
            Self::Stopped => Self::Stopped,
            Self::Fault(fault) => Self::Fault(Fault::new(fault.class, format!("{place}{}", fault.message))),
        }
    }

    /// Translates the engine's error of a failed call, in which the guest's panic hook has given the message `panic`. The process
    /// may have `instances` instances, and the call was allowed to return `output_limit` bytes.
    pub(crate) fn of(
        error: &wasmtime::Error,
        panic: Option<&str>,
        instances: u32,
        output_limit: u64,
    ) -> Self {
        if let Some(kill) = error.downcast_ref::<Kill>() {
            return kill.clone().into();
        }
        let bug = |message: String| Self::Fault(Fault::new(FailureClass::Bug, message));
        if error.is::<PoolConcurrencyLimitError>() {
            return bug(format!(
                "no room for another instance: all {instances} of this process are in use; run fewer threads or \
                 stages, or allow more instances"
            ));
        }
        let backtrace = error.downcast_ref::<WasmBacktrace>();
        let frames = backtrace.map(names).unwrap_or_default();
        match error.downcast_ref::<Trap>() {
            Some(trap) => bug(format!("{}{}", describe(*trap, panic, &frames), called(&frames))),
            None => {
                // The backtrace, in the engine's format, is the first entry of the error chain and is left out.
                let said = error.chain().skip(usize::from(backtrace.is_some()));
                let said: Vec<String> = said.map(ToString::to_string).collect();
                Self::of_misuse(&said.join(": "), &called(&frames), output_limit)
            }
        }
    }

    /// Translates an error that is neither a trap nor a [`Kill`]. Such an error comes from reading the guest's values, e.g. wrong
    /// pointers, invalid UTF-8 or too much data. `called` is the text with the stack frames, if known.
    fn of_misuse(said: &str, called: &str, output_limit: u64) -> Self {
        // The message is compared, because the type of this error is private to the engine.
        let message = if said.contains("too much data is being copied") {
            let why = match output_limit {
                MAX_CALL_OUTPUT_BYTES => "the limit of any call",
                _ => "`output_mib` per sample",
            };
            format!("returned more than {} MiB in one call ({why})", mib(output_limit))
        } else {
            format!("returned values that cannot be read: {}{called}", printable(said, MAX_REASON_BYTES))
        };
        Self::Fault(Fault::new(FailureClass::Contract, message))
    }
}

fn describe(trap: Trap, panic: Option<&str>, frames: &[String]) -> String {
    match (trap, panic) {
        (_, Some(panic)) => format!("panicked: {panic}"),
        (Trap::StackOverflow, _) => "stack exhausted: recursion too deep".into(),
        // The guest's stack is at the start of its memory, so a stack overflow appears as an access below address zero.
        (Trap::MemoryOutOfBounds, _) if is_recursion(frames) => "stack exhausted: recursion too deep".into(),
        (Trap::MemoryOutOfBounds, _) => "accessed memory out of bounds: a bad pointer or index".into(),
        (Trap::UnreachableCodeReached, _) => {
            "reached `unreachable`: it panicked or aborted without a message (the SDK's panic hook sends one)"
                .into()
        }
        (Trap::IntegerDivisionByZero, _) => "divided by zero".into(),
        (trap, _) => {
            let said = trap.to_string();
            format!("trapped: {}", said.trim_start_matches("wasm trap: "))
        }
    }
}

fn is_recursion(frames: &[String]) -> bool {
    let distinct: BTreeSet<&String> = frames.iter().collect();
    frames.len() >= RECURSION_FRAMES && distinct.len() <= RECURSION_NAMES
}

/// Formats the frames, innermost first: only the guest's functions, without the panic machinery, and repetitions as a count.
fn called(frames: &[String]) -> String {
    let mut shown: Vec<(&str, usize)> = Vec::new();
    for frame in frames.iter().filter(|frame| !is_machinery(frame)) {
        match shown.last_mut() {
            Some((last, times)) if *last == frame => *times += 1,
            _ => shown.push((frame, 1)),
        }
    }
    let mut text = String::new();
    for (number, (frame, times)) in shown.iter().take(SHOWN_FRAMES).enumerate() {
        text.push_str(if number == 0 { "; in `" } else { " < `" });
        text.push_str(frame);
        text.push('`');
        if *times > 1 {
            write!(text, " x{times}").expect("a string takes any text");
        }
    }
    text
}

/// Returns true for a stack frame of the panic machinery or of the entry point of the call.
fn is_machinery(frame: &str) -> bool {
    // A match must end at a segment boundary: at the end, or before `::` (another segment), `<` (type arguments) or `[` (the crate's disambiguator).
    let is_within = |path: &&str| {
        frame.strip_prefix(*path).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '<', '[']))
    };
    // True for the export itself, e.g. `penstock:stage/transform@0.1.0#process`, or its `cabi_post_` function. The name of a Rust
    // closure has a `#`, too, but no `@` before it.
    let is_export = frame.split_once('@').is_some_and(|(_, version)| version.contains('#'));
    // True for a wrapper such as `_export_process_cabi`, which wit-bindgen generates around the stage.
    let is_wrapper =
        frame.split("::").any(|segment| segment.starts_with("_export_") && segment.ends_with("_cabi"));
    MACHINERY.iter().any(is_within) || frame.starts_with("__rust_") || is_export || is_wrapper
}

fn names(trace: &WasmBacktrace) -> Vec<String> {
    trace
        .frames()
        .iter()
        .map(|frame| match frame.func_name() {
            Some(name) => printable(&format!("{:#}", rustc_demangle::demangle(name)), SHOWN_FRAME_BYTES),
            None => format!("function {}", frame.func_index()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).into()).collect()
    }

    #[test]
    fn too_much_output_names_the_setting_that_would_allow_it_if_any() {
        let message = |limit| match CallEnd::of_misuse("too much data is being copied", "", limit) {
            CallEnd::Fault(fault) => fault.message.to_string(),
            CallEnd::Stopped => panic!("expected a fault"),
        };
        assert_eq!(message(2 << 20), "returned more than 2 MiB in one call (`output_mib` per sample)");
        assert_eq!(
            message(MAX_CALL_OUTPUT_BYTES),
            "returned more than 1024 MiB in one call (the limit of any call)"
        );
    }

    #[test]
    fn the_panic_machinery_is_left_out_and_repetitions_are_folded() {
        let trace = frames(&[
            "__rustc[e6f]::rust_panic",
            "core::panicking::panic_fmt",
            "work::step",
            "work::step",
            "work::process",
            "penstock:stage/transform@0.1.0#process",
        ]);
        assert_eq!(called(&trace), "; in `work::step` x2 < `work::process`");
        assert_eq!(called(&[]), "");
    }

    #[test]
    fn functions_of_the_guest_are_shown_even_with_names_similar_to_machinery() {
        let own = [
            "work::process::{closure#0}",
            "work::process::{{closure}}",
            "abort_upload",
            "abortive::work",
            "rustc_hash::FxHasher::write",
            "rust_panicky",
            "csv_export_rows",
            "work::_export_all",
            "work::set_panic_hook",
            "std::sysinfo::read",
            "mail@example",
        ];
        for frame in own {
            assert!(!is_machinery(frame), "{frame}");
        }
        let machinery = [
            "__rustc::rust_begin_unwind",
            "__rustc[e6f]::rust_panic",
            "__rust_start_panic",
            "rust_panic",
            "abort",
            "std::process::abort",
            "std::panicking::begin_panic_handler::{closure#0}",
            "core::panicking::panic_fmt",
            "core::panicking::assert_failed::<u32, u32>",
            "std::sys::backtrace::__rust_end_short_backtrace::<work::f, ()>",
            "console_error_panic_hook::hook",
            "penstock:stage/transform@0.1.0#process",
            "cabi_post_penstock:stage/transform@0.1.0#process",
            "guest::export::transform::_export_process_cabi::<work::Component>",
        ];
        for frame in machinery {
            assert!(is_machinery(frame), "{frame}");
        }
    }

    #[test]
    fn out_of_bounds_at_the_end_of_a_recursion_is_an_exhausted_stack() {
        let deep = vec!["work::dive".to_owned(); 20];
        assert_eq!(describe(Trap::MemoryOutOfBounds, None, &deep), "stack exhausted: recursion too deep");
        let flat = frames(&["a", "b"]);
        assert!(describe(Trap::MemoryOutOfBounds, None, &flat).contains("bad pointer"));
    }

    #[test]
    fn the_message_of_the_panic_hook_replaces_the_trap() {
        let said = describe(Trap::UnreachableCodeReached, Some("no at src/lib.rs:1:2"), &[]);
        assert_eq!(said, "panicked: no at src/lib.rs:1:2");
    }
}
