// Kinds of stores, in lists and in the reports of benchmarks.

import type { BenchStoreKind, StoreKind } from '../api/types'

export const STORE_KINDS: Record<StoreKind, string> = { folder: 'folder', s3: 'S3' }

export const BENCH_STORE_KINDS: Record<BenchStoreKind, string> = { folder: 'a folder', s3: 'a bucket', memory: 'memory' }

/** True for kinds of stores whose reads need connections. */
export const HAS_CONNECTIONS: Record<BenchStoreKind, boolean> = { folder: false, s3: true, memory: false }
