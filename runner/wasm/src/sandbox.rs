//! The engine that runs all guests of this process: its settings, its pool, its timer and its cache.

use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use penstock_types::config::GateBounds;
use penstock_types::text::{hex, printable};
use sha2::{Digest, Sha256};
use wasmtime::component::{Component, Linker};
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig, WasmBacktraceDetails,
};

use crate::bindings::StagePre;
use crate::bindings::saving::SavingPre;
use crate::cache::{Cache, Image, Purpose, load_compiled};
use crate::compile::{CompilePermits, Compiler, Sharing};
use crate::component::{ModuleKind, exports_state, outline};
use crate::error::{ModuleError, SandboxError};
use crate::gate;
use crate::limits;
use crate::linker::{Guest, linker};
use crate::module::{Compilation, Module, ModuleParts, ModuleReport};
use crate::signature;
use crate::ticker::Ticker;

/// Address space of one memory in bytes: the whole range of 32-bit addresses, so that no access needs a bounds check.
const RESERVATION_BYTES: u64 = 4 << 30;
/// Address space of all memories of one instance, in GiB.
const SLOT_GIB: u64 = (RESERVATION_BYTES >> 30) * limits::MEMORIES as u64;
const BACKTRACE_FRAMES: usize = 32;
/// Maximum number of modules that are compiled at the same time; further modules wait.
const COMPILATIONS: usize = 2;
const DIGEST_PREFIX: &str = "sha256:";

#[derive(Clone, Debug)]
pub struct SandboxSettings {
    /// Folder whose subfolder `compiled` caches compiled modules; `None` compiles at every load.
    pub cache_dir: Option<PathBuf>,
    /// Maximum number of instances at the same time, over all runs: worker threads x WASM stages. Each instance reserves 12 GiB of
    /// address space, but no memory.
    pub instances: u32,
    pub compiler: Compiler,
    /// Maximum total size of the cached modules, in bytes; the least recently used ones are evicted.
    pub cache_bytes: u64,
    /// Bounds of the size and nesting of modules.
    pub gate: GateBounds,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self {
            cache_dir: None,
            instances: 256,
            compiler: Compiler::default(),
            cache_bytes: 4 << 30,
            gate: GateBounds::default(),
        }
    }
}

/// Sandbox that turns bytes into modules. One per process; cheap to clone.
#[derive(Clone, Debug)]
pub struct Sandbox(pub(crate) Arc<SandboxCore>);

pub(crate) struct SandboxCore {
    pub(crate) engine: Engine,
    pub(crate) ticker: Ticker,
    pub(crate) instances: u32,
    linker: Linker<Guest>,
    cache: Option<Cache>,
    /// Digest of the engine with all of its settings.
    engine_digest: [u8; 32],
    /// Digest of the engine and the gate's bounds; a part of the cache key.
    purpose: [u8; 32],
    compiler: Compiler,
    compiling: CompilePermits,
    loading: Sharing<Result<Loaded, ModuleError>>,
    gate: GateBounds,
}

/// Machine code that is ready to run.
#[derive(Clone)]
struct Loaded {
    component: Component,
    /// Code in the cache that the component maps.
    image: Option<Arc<Image>>,
    compilation: Compilation,
}

impl Sandbox {
    /// Creates the engine, reserves its address space, opens the cache and starts the timer thread.
    pub fn new(settings: SandboxSettings) -> Result<Self, SandboxError> {
        let most_bytes = settings.cache_bytes;
        let cache = settings.cache_dir.as_deref().map(|folder| Cache::open(folder, most_bytes));
        let cache = cache.transpose()?.flatten();
        let instances = settings.instances.max(1);
        let config = config(instances);
        let engine = Engine::new(&config).map_err(|error| SandboxError::Pool {
            instances,
            slot_gib: SLOT_GIB,
            total_gib: SLOT_GIB * u64::from(instances),
            source: error.into(),
        })?;
        let linker = linker(&engine).map_err(|error| SandboxError::Engine(error.into()))?;
        let ticker = Ticker::start(&engine).map_err(SandboxError::Thread)?;
        Ok(Self(Arc::new(SandboxCore {
            purpose: digest_of_purpose(&digest_of_engine(&engine), &settings.gate),
            engine_digest: digest_of_engine(&engine),
            engine,
            ticker,
            instances,
            linker,
            cache,
            compiler: settings.compiler,
            compiling: CompilePermits::new(COMPILATIONS),
            loading: Sharing::new(),
            gate: settings.gate,
        })))
    }

    /// Checks an uploaded module and makes it ready to run: compiles it, or reads its code from the cache. Takes up to several
    /// seconds for a module that is not in the cache, and longer while other modules are compiled. Concurrent loads of one module
    /// compile it once.
    pub fn load(&self, bytes: &[u8]) -> Result<Module, ModuleError> {
        // Checked before hashing, so that a module that is too large causes no work.
        gate::check_size(bytes, &self.0.gate)?;
        let outline = outline(bytes)?;
        let marked = self.0.cache.as_ref().map(|cache| (cache, cache.mark(bytes)));
        let remembered = marked.as_ref().and_then(|(cache, mark)| cache.digest(mark));
        let digest = remembered.unwrap_or_else(|| Sha256::digest(bytes).into());
        let (loaded, is_ours) = self.0.loading.work(&digest, || self.0.load(bytes, &digest, outline.kind));
        let Loaded { component, image, compilation } = loaded?;
        if let (true, None, Some((cache, mark))) = (is_ours, remembered, &marked) {
            cache.remember(mark, &digest);
        }
        let misfit =
            |error: wasmtime::Error| ModuleError::Export { found: printable(&format!("{error:#}"), 500) };
        signature::check(&self.0.engine, &component)?;
        let instance = self.0.linker.instantiate_pre(&component).map_err(misfit)?;
        let saving = exports_state(&outline.exports).then(|| SavingPre::new(instance.clone()));
        let (pre, saving) = (StagePre::new(instance).map_err(misfit)?, saving.transpose().map_err(misfit)?);
        Ok(Module(Arc::new(ModuleParts {
            sandbox: self.clone(),
            pre,
            saving,
            digest: digest_name(&digest),
            size: bytes.len() as u64,
            outline,
            _image: image,
            compilation: if is_ours { compilation } else { Compilation::Shared },
        })))
    }

    /// Returns true if the cache has code for the module with this digest; if the entry is valid, [`Self::load`] compiles
    /// nothing.
    pub fn is_compiled(&self, digest: &str) -> bool {
        let digits =
            digest.strip_prefix(DIGEST_PREFIX).filter(|digits| digits.len() == 64 && digits.is_ascii());
        let module: Option<Vec<u8>> = digits.and_then(|digits| {
            let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
            digits.as_bytes().chunks(2).map(byte).collect()
        });
        let Some(Ok(module)) = module.map(<[u8; 32]>::try_from) else { return false };
        let purpose = Purpose { module: &module, made_for: &self.0.purpose };
        self.0.cache.as_ref().is_some_and(|cache| cache.has(purpose))
    }

    /// Runs [`inspect`] with this sandbox's bounds and compiler.
    pub fn inspect(&self, bytes: &[u8]) -> Result<ModuleReport, ModuleError> {
        inspect(bytes, &self.0.gate, &self.0.compiler)
    }
}

impl SandboxCore {
    /// Loads machine code from the cache, or compiles it.
    fn load(&self, bytes: &[u8], digest: &[u8; 32], kind: ModuleKind) -> Result<Loaded, ModuleError> {
        let purpose = Purpose { module: digest, made_for: &self.purpose };
        let found = self.cache.as_ref().and_then(|cache| cache.load(&self.engine, purpose));
        if let Some((component, image)) = found {
            return Ok(Loaded { component, image: Some(image), compilation: Compilation::Cached });
        }
        gate::check(bytes, &self.gate)?;
        let code = {
            let _place = self.compiling.take();
            self.compiler.compile(&self.engine, &self.engine_digest, bytes, kind)?
        };
        let component = load_compiled(&self.engine, &code).map_err(|error| {
            let reason =
                format!("the compiled code cannot be loaded: {}", printable(&format!("{error:#}"), 500));
            ModuleError::Compile { reason }
        })?;
        if let Some(cache) = &self.cache {
            cache.store(purpose, &code);
        }
        Ok(Loaded { component, image: None, compilation: Compilation::Compiled })
    }
}

/// Checks an uploaded module and reports on it, without compiling it to machine code or running any of it.
pub fn inspect(bytes: &[u8], bounds: &GateBounds, compiler: &Compiler) -> Result<ModuleReport, ModuleError> {
    let report = ModuleReport::read(bytes, bounds)?;
    compiler.look(bytes, report.kind)?;
    Ok(report)
}

impl ModuleReport {
    /// Reads the sections of a module after the checks of the gate. Does not check that the module can be compiled, because that
    /// is not safe in this process with untrusted bytes.
    pub fn read(bytes: &[u8], bounds: &GateBounds) -> Result<Self, ModuleError> {
        gate::check_size(bytes, bounds)?;
        let outline = outline(bytes)?;
        let counts = gate::check(bytes, bounds)?;
        Ok(Self {
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
}

fn digest_name(digest: &[u8; 32]) -> String {
    format!("{DIGEST_PREFIX}{}", hex(digest))
}

/// Digest of the engine, the bounds and the functions of preview1, which become part of a module. With the bounds included, a
/// module that passed wider bounds is checked again.
fn digest_of_purpose(engine: &[u8; 32], gate: &GateBounds) -> [u8; 32] {
    let preview1 = Sha256::digest(crate::preview1::FUNCTIONS);
    Sha256::new()
        .chain_update(engine)
        .chain_update(format!("{gate:?}"))
        .chain_update(preview1)
        .finalize()
        .into()
}

/// Digest of everything on which machine code depends: engine version, this machine and settings.
pub(crate) fn digest_of_engine(engine: &Engine) -> [u8; 32] {
    struct Absorb(Sha256);

    impl Hasher for Absorb {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }

        fn finish(&self) -> u64 {
            let digest: [u8; 32] = self.0.clone().finalize().into();
            u64::from_le_bytes(digest[..8].try_into().expect("eight of 32 bytes"))
        }
    }

    let mut digest = Absorb(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut digest);
    digest.0.finalize().into()
}

/// Settings of an engine that runs guests: the settings for machine code, and a pool of instances.
fn config(instances: u32) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(instances.saturating_mul(limits::CORE_INSTANCES))
        .total_memories(instances.saturating_mul(limits::MEMORIES))
        .total_tables(instances.saturating_mul(limits::TABLES))
        .table_elements(limits::TABLE_ENTRIES);
    let mut config = code_config();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

/// Settings on which machine code depends; identical in this process and in the compiling process.
pub(crate) fn code_config() -> Config {
    let mut config = Config::new();
    config
        .memory_reservation(RESERVATION_BYTES)
        .memory_init_cow(true)
        .epoch_interruption(true)
        .concurrency_support(false)
        .max_wasm_stack(limits::GUEST_STACK_BYTES)
        .cranelift_opt_level(OptLevel::Speed)
        .wasm_backtrace_max_frames(std::num::NonZeroUsize::new(BACKTRACE_FRAMES))
        // Disabled, because untrusted debug info must not be parsed; function names come from the name section.
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        // Both are unused: backtraces have names only, and unwind information serves foreign debuggers. Without them the code is
        // a tenth smaller, and loading it registers nothing with the process's unwinder.
        .generate_address_map(false)
        .native_unwind_info(false)
        .wasm_relaxed_simd(false)
        .wasm_memory64(false)
        .wasm_tail_call(false)
        .wasm_custom_page_sizes(false);
    config
}

impl std::fmt::Debug for SandboxCore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SandboxCore").finish_non_exhaustive()
    }
}
