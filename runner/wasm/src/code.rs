//! Machine code on its way into this process.

use wasmtime::Engine;
use wasmtime::component::Component;

/// Machine code that a compiler of ours gave: whole, from this process or from its own child, or from the cache with a
/// signature of ours. Nothing else may become one: it is run without further checks.
#[derive(Clone, Copy)]
pub(crate) struct Code<'a>(&'a [u8]);

impl<'a> Code<'a> {
    /// What the compiler of this process gave, or what its child sent, whole, through a pipe that only the two hold.
    pub(crate) fn from_compiler(code: &'a [u8]) -> Self {
        Self(code)
    }

    /// What lay in the cache and is signed for this module and this engine. It has to be the very memory that was verified.
    pub(crate) fn from_cache(verified: &'a [u8]) -> Self {
        Self(verified)
    }

    /// Copies the code into memory that can be run.
    pub(crate) fn load(self, engine: &Engine) -> wasmtime::Result<Component> {
        // SAFETY: by the constructors' contract these bytes are what `precompile_component` gave, unchanged. The engine
        // itself refuses code of another version or other settings.
        #[expect(unsafe_code, reason = "running compiled code is what a sandbox is for; see SAFETY")]
        unsafe {
            Component::deserialize(engine, self.0)
        }
    }
}
