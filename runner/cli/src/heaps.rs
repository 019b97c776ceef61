//! Limit of the memory that the allocator holds without using it.

/// Limits glibc to one heap per core. By default it creates up to eight per core, and samples that one thread allocates and
/// another thread frees leave holes in all heaps: the memory of the photo pipeline grew by 16 % between 1,000 and 100,000
/// samples. Other allocators need no such limit. Called before other threads start.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "there is no safe way to set an option of the allocator")]
pub(crate) fn bound() {
    let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2));
    let heaps = libc::c_int::try_from(cores).unwrap_or(libc::c_int::MAX);
    // SAFETY: the option and its value are valid, and no other thread runs yet. A refusal changes nothing.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, heaps) };
}

/// No effect: only glibc needs the limit.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn bound() {}
