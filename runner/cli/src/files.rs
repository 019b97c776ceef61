//! How many files this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than anything here opens. Some systems allow a billion, and there are libraries that visit all of them.
const MOST: u64 = 1 << 16;

/// Raises what the process begins with to what it is allowed. Reads of many objects, connections and shared memory are open files, and
/// the 1,024 that a shell usually gives are soon gone.
pub(crate) fn allow_many() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(MOST).min(MOST);
    if current.is_some_and(|current| current < wanted) {
        // Refused, it stays as it is: whoever runs out of files says so.
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).unwrap_or_default();
    }
}
