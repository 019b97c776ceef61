//! The engine that runs all guests of this process: its settings, its pool, its timer and its cache.

use std::path::PathBuf;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use wasmtime::component::{Component, Linker};
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig, WasmBacktraceDetails,
};

use crate::bindings::StagePre;
use crate::cache::{Cache, hex};
use crate::compile::{check_encoding, compile};
use crate::component::{Outline, outline};
use crate::error::{ModuleError, SandboxError};
use crate::gate;
use crate::limits::{self, monotonic};
use crate::linker::{Guest, linker};
use crate::module::{Compilation, Module, ModuleKind, ModuleParts, ModuleReport};
use crate::signature;
use crate::text::printable;
use crate::ticker::Ticker;

/// Address space of one instance's memory: all that 32-bit code can name, so that no access needs a bounds check.
const RESERVATION_BYTES: u64 = 4 << 30;
/// Most frames of a trap that are looked at.
const BACKTRACE_FRAMES: usize = 32;

/// How the sandbox of a process is set up.
#[derive(Clone, Debug)]
pub struct SandboxSettings {
    /// Where compiled modules are kept, in a directory of their own; `None` compiles at every load.
    pub cache_dir: Option<PathBuf>,
    /// Most instances alive at a time, over all runs: worker threads x WASM stages. Each reserves 4 GiB of address
    /// space, not memory.
    pub instances: u32,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self { cache_dir: None, instances: 256 }
    }
}

/// Turns bytes into modules. One per process; cheap to clone.
#[derive(Clone, Debug)]
pub struct Sandbox(Arc<Shared>);

/// What modules and their instances need for as long as they live.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) ticker: Ticker,
    pub(crate) instances: u32,
    linker: Linker<Guest>,
    cache: Option<Cache>,
}

impl Sandbox {
    /// Sets up the engine, reserves its address space, opens the cache and starts the timer thread.
    pub fn new(settings: SandboxSettings) -> Result<Self, SandboxError> {
        let cache = settings.cache_dir.as_deref().map(Cache::open).transpose()?;
        let instances = settings.instances.max(1);
        let config = config(instances);
        let engine = Engine::new(&config).map_err(|error| SandboxError::Pool {
            instances,
            slot_gib: RESERVATION_BYTES >> 30,
            total_gib: (RESERVATION_BYTES >> 30) * u64::from(instances),
            source: error.into(),
        })?;
        let linker = linker(&engine).map_err(|error| SandboxError::Engine(error.into()))?;
        let ticker = Ticker::start(&engine).map_err(SandboxError::Thread)?;
        Ok(Self(Arc::new(Shared { engine, ticker, instances, linker, cache })))
    }

    /// Checks an uploaded module and makes it ready to run: compiled, or mapped from the cache.
    /// Takes up to seconds for a module that is not in the cache.
    pub fn load(&self, bytes: &[u8]) -> Result<Module, ModuleError> {
        let start = monotonic();
        // Before hashing: what is too large costs nothing.
        gate::check_size(bytes)?;
        let outline = outline(bytes)?;
        let digest: [u8; 32] = Sha256::digest(bytes).into();
        let (component, compilation) = self.component(bytes, &digest, &outline)?;
        let misfit =
            |error: wasmtime::Error| ModuleError::Export { found: printable(&format!("{error:#}"), 500) };
        signature::check(&self.0.engine, &component)?;
        let pre = self.0.linker.instantiate_pre(&component).and_then(StagePre::new).map_err(misfit)?;
        Ok(Module::new(ModuleParts {
            sandbox: self.0.clone(),
            pre,
            digest: digest_name(&digest),
            size: bytes.len() as u64,
            outline,
            compilation,
            load_time: monotonic().saturating_sub(start),
        }))
    }

    fn component(
        &self,
        bytes: &[u8],
        digest: &[u8; 32],
        outline: &Outline,
    ) -> Result<(Component, Compilation), ModuleError> {
        let engine = &self.0.engine;
        if let Some(found) = self.0.cache.as_ref().and_then(|cache| cache.load(engine, digest)) {
            return Ok((found, Compilation::Cached));
        }
        gate::check(bytes)?;
        let compiled = compile(engine, bytes, outline.kind)?;
        if let Some(cache) = &self.0.cache {
            cache.store(engine, digest, &compiled);
        }
        Ok((compiled, Compilation::Compiled))
    }
}

/// Checks an uploaded module and tells what it is, without compiling or running any of it.
pub fn inspect(bytes: &[u8]) -> Result<ModuleReport, ModuleError> {
    gate::check_size(bytes)?;
    let outline = outline(bytes)?;
    let counts = gate::check(bytes)?;
    if outline.kind == ModuleKind::Core {
        check_encoding(bytes)?;
    }
    Ok(ModuleReport {
        digest: digest_name(&Sha256::digest(bytes).into()),
        size_bytes: bytes.len() as u64,
        kind: outline.kind,
        imports: outline.imports,
        exports: outline.exports,
        functions: counts.functions,
        code_bytes: counts.code_bytes,
        manifest: outline.manifest,
    })
}

fn digest_name(digest: &[u8; 32]) -> String {
    format!("sha256:{}", hex(digest))
}

/// The engine's settings. All but the pool's sizes are part of what a compiled module is cached under.
fn config(instances: u32) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(instances.saturating_mul(limits::CORE_INSTANCES))
        .total_memories(instances.saturating_mul(limits::MEMORIES))
        .total_tables(instances.saturating_mul(limits::TABLES))
        .table_elements(limits::TABLE_ENTRIES);
    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .memory_reservation(RESERVATION_BYTES)
        .memory_init_cow(true)
        .epoch_interruption(true)
        .concurrency_support(false)
        .max_wasm_stack(limits::GUEST_STACK_BYTES)
        .cranelift_opt_level(OptLevel::Speed)
        .wasm_backtrace_max_frames(std::num::NonZeroUsize::new(BACKTRACE_FRAMES))
        // Names come from the name section; a stranger's debug info is never parsed.
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .wasm_relaxed_simd(false)
        .wasm_memory64(false)
        .wasm_tail_call(false)
        .wasm_custom_page_sizes(false);
    config
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").field("cache", &self.cache).finish_non_exhaustive()
    }
}
