//! The three host functions that guests may call, and their state. There is no WASI.

use std::sync::Arc;

use penstock_types::text::printable;
use wasmtime::Engine;
use wasmtime::component::{HasSelf, Linker};

use crate::bindings::Stage;
use crate::bindings::penstock::stage::host::{Host, Level};
use crate::counters::Counters;
use crate::limits::{CallClock, MAX_REASON_BYTES, MemoryLimit, monotonic};
use crate::log::{LogLevel, LogSink, MAX_CALL_BYTES, MIN_LINE_BYTES};
use crate::settings::StageSettings;

/// Prefix of the line that the guest SDK logs as an error before a panic traps, e.g. `panic: no size at src/lib.rs:12:5`. The
/// text after the prefix becomes the fault's message.
const PANIC_PREFIX: &str = "panic: ";
const SHOWN_NAME: usize = 128;

#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) memory: MemoryLimit,
    pub(crate) clock: CallClock,
    pub(crate) host: HostSide,
}

/// State of the host functions.
#[derive(Debug)]
pub(crate) struct HostSide {
    pub(crate) settings: Arc<StageSettings>,
    pub(crate) log: Arc<LogSink>,
    pub(crate) counters: Arc<Counters>,
    /// Number of bytes logged in the current call.
    pub(crate) logged: usize,
    /// Message of the panic hook in the current call, if any.
    pub(crate) panic: Option<String>,
}

impl Host for HostSide {
    fn log(&mut self, level: Level, message: String) -> wasmtime::Result<()> {
        if level == Level::Error
            && let Some(said) = message.strip_prefix(PANIC_PREFIX)
        {
            self.panic = Some(printable(said, MAX_REASON_BYTES));
        }
        self.logged = self.logged.saturating_add(message.len().max(MIN_LINE_BYTES));
        if self.logged > MAX_CALL_BYTES {
            self.log.count_dropped();
            return Ok(());
        }
        let level = match level {
            Level::Debug => LogLevel::Debug,
            Level::Info => LogLevel::Info,
            Level::Warn => LogLevel::Warn,
            Level::Error => LogLevel::Error,
        };
        self.log.log(level, &message, monotonic());
        Ok(())
    }

    fn count(&mut self, name: String, delta: f64) -> wasmtime::Result<()> {
        Ok(self.counters.add(&name, delta)?)
    }

    fn asset(&mut self, name: String) -> wasmtime::Result<Result<Vec<u8>, String>> {
        Ok(self.settings.assets.get(&name).map(|bytes| bytes.to_vec()).ok_or_else(|| {
            let name = printable(&name, SHOWN_NAME);
            format!("no asset `{name}`: add it under `assets` of this stage in the pipeline")
        }))
    }

    fn memory_limit(&mut self) -> wasmtime::Result<u64> {
        Ok(self.settings.memory_bytes)
    }
}

/// Creates a linker that provides only the contract's host interface.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    Stage::add_to_linker::<_, HasSelf<HostSide>>(&mut linker, |guest: &mut Guest| &mut guest.host)?;
    Ok(linker)
}

impl crate::bindings::penstock::stage::types::Host for HostSide {}
