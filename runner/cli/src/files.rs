//! Limit of the number of open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Upper bound of the raised limit, more than this program needs. Some systems allow a billion open files, and some libraries
/// iterate over all possible descriptors.
const MOST: u64 = 1 << 16;

/// Raises the soft limit to the hard limit. Concurrent reads, connections and shared memory need open files, and the usual limit
/// of 1,024 in a shell is soon reached.
pub(crate) fn allow_many() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(MOST).min(MOST);
    if current.is_some_and(|current| current < wanted) {
        // If the change is refused, the old limit remains; an error because of too many open files is reported where it occurs.
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).unwrap_or_default();
    }
}
