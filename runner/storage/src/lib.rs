//! Stores of named objects, the sources that read them, and the `fetch` stage.
//!
//! A [`Store`] maps keys to objects in a flat namespace, like an S3 bucket; [`FolderStore`] is one in a local folder,
//! [`MemoryStore`] one in memory, [`s3_store`] makes one in a bucket of S3. Sources and stages use a store through a
//! [`BoundedStore`], which limits the concurrent reads and writes.

mod asked;
mod blocks;
mod bounded;
mod cached;
mod caching;
mod data_cache;
mod error;
mod fetch;
mod folder;
mod index;
mod key;
mod keyed;
mod keys;
mod links;
mod list;
mod memory;
mod observe;
mod page_cache;
mod permits;
mod remote;
mod s3;
mod stamp;
mod store;
mod walk;
mod write;

pub use blocks::{AHEAD_BYTES, BYTE_ORDER_MARK, Blocks, RangedObject};
pub use bounded::{BoundedStore, DEFAULT_READS, ReadTime};
pub use caching::{ObjectCache, ObjectPlace};
pub use data_cache::{CacheLimits, DEFAULT_KEEP_FREE, DataCache, MOST_WAITING, SetFacts};
pub use error::{Access, OpenFault, StoreError, interrupted, shown};
pub use fetch::FetchOp;
pub use folder::FolderStore;
pub use index::{MAX_INDEX_BYTES, RAISE_BUFFER, index_samples, write_index};
pub use key::{MAX_KEY_BYTES, check_key, check_named_key, check_named_prefix, check_prefix};
pub use keys::{Keys, PackedKeys};
pub use list::{ListSource, NEW_HIDDEN, NEW_LINKS, Wanted, is_hidden_folder, list_samples};
pub use memory::MemoryStore;
pub use observe::{ReadParts, observe};
pub use penstock_types::plan::BYTES_FIELD;
pub use remote::options::{Retries, Timeouts};
pub use s3::{S3Credentials, S3Fault, S3Settings, s3_store};
pub use store::{Folders, IfThere, KeyPages, MAX_GET_BYTES, Store, StoreFuture, Version};
