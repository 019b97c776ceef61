//! Limit of open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Upper bound, more than this program opens. Some systems allow a billion, and some libraries visit every possible descriptor.
const MOST: u64 = 1 << 16;

/// Raises the soft limit to the hard limit. Reads of many objects, connections and shared memory are open files, and the 1,024
/// that a shell usually allows are soon used up.
pub(crate) fn allow_many() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(MOST).min(MOST);
    if current.is_some_and(|current| current < wanted) {
        // A refused change leaves the old limit; running out of files is reported where it happens.
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).unwrap_or_default();
    }
}
