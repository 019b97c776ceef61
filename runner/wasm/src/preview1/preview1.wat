;; The functions of `wasi_snapshot_preview1` without a system: no files, arguments, environment or sockets; a clock that only sleeping
;; moves; random numbers from the sample's seed; standard output and error to the log of the host, line by line.
;;
;; `preview1.wasm` beside this file is this text, assembled by the tests of this crate with `UPDATE_PREVIEW1=1`.
(module
  (import "penstock:stage/host@0.1.0" "log" (func $log (param $level i32) (param $start i32) (param $length i32)))
  ;; Memory of the stage, which all pointers of the callers refer to.
  (import "env" "memory" (memory $stage 0))
  ;; Memory of this module. The stage cannot see it: its allocator may expect that it is the only one to grow a memory.
  ;;     0   length of the pending line of each descriptor, i32 at 4 * descriptor
  ;;   256   constant texts
  ;;  2048   pending line of standard output, 7 bytes of room before it
  ;;  4096   pending line of standard error, likewise
  ;;  6144   bytes of the stage that a line displaces during a call of `log`
  (memory $own 1)
  (data (memory $own) (i32.const 256) "panic: fatal error: Assertion failed: panic: called `exit` with code ")

  ;; Maximum length of a line in bytes; a longer line becomes several. The host cuts lines at this length.
  (global $line_bytes i32 (i32.const 1024))
  ;; State of SplitMix64.
  (global $random (mut i64) (i64.const 0))
  ;; 2000-01-01T00:00:00Z in nanoseconds since 1970, and the time that the sample has slept.
  (global $epoch i64 (i64.const 946684800000000000))
  (global $slept (mut i64) (i64.const 0))
  ;; Monotonic clock. Never zero, which the runtime of Go takes for a failure.
  (global $monotonic (mut i64) (i64.const 1000000000))
  ;; Set once a line on standard error gave the reason for the end of the stage.
  (global $reasoned (mut i32) (i32.const 0))

  ;; ---- Lines ----

  ;; Logs bytes of `$own`. They replace the first bytes of the stage's memory during the call, since the host reads that memory only.
  (func $emit (param $level i32) (param $start i32) (param $length i32)
    (memory.copy $own $stage (i32.const 6144) (i32.const 0) (local.get $length))
    (memory.copy $stage $own (i32.const 0) (local.get $start) (local.get $length))
    (call $log (local.get $level) (i32.const 0) (local.get $length))
    (memory.copy $stage $own (i32.const 0) (i32.const 6144) (local.get $length)))

  (func $starts_with (param $start i32) (param $text i32) (param $length i32) (result i32)
    (local $at i32)
    (loop $next
      (if (i32.eq (local.get $at) (local.get $length)) (then (return (i32.const 1))))
      (if (i32.ne (i32.load8_u $own (i32.add (local.get $start) (local.get $at)))
                  (i32.load8_u $own (i32.add (local.get $text) (local.get $at))))
        (then (return (i32.const 0))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br $next))
    (unreachable))

  ;; Number of bytes of the UTF-8 character at `$at`; 0 if the bytes before `$end` are none.
  (func $character (param $at i32) (param $end i32) (result i32)
    (local $first i32) (local $length i32) (local $low i32) (local $high i32) (local $next i32)
    (local.set $first (i32.load8_u $own (local.get $at)))
    (if (i32.lt_u (local.get $first) (i32.const 0x80)) (then (return (i32.const 1))))
    (if (i32.lt_u (local.get $first) (i32.const 0xc2)) (then (return (i32.const 0))))
    (if (i32.gt_u (local.get $first) (i32.const 0xf4)) (then (return (i32.const 0))))
    (local.set $length (i32.add (i32.const 2) (i32.add
      (i32.ge_u (local.get $first) (i32.const 0xe0)) (i32.ge_u (local.get $first) (i32.const 0xf0)))))
    (if (i32.gt_u (i32.add (local.get $at) (local.get $length)) (local.get $end)) (then (return (i32.const 0))))
    ;; The second byte excludes long forms, surrogates and numbers beyond U+10FFFF.
    (local.set $low (select (i32.const 0xa0) (i32.const 0x80) (i32.eq (local.get $first) (i32.const 0xe0))))
    (local.set $low (select (i32.const 0x90) (local.get $low) (i32.eq (local.get $first) (i32.const 0xf0))))
    (local.set $high (select (i32.const 0x9f) (i32.const 0xbf) (i32.eq (local.get $first) (i32.const 0xed))))
    (local.set $high (select (i32.const 0x8f) (local.get $high) (i32.eq (local.get $first) (i32.const 0xf4))))
    (local.set $next (i32.const 1))
    (loop $more
      (local.set $first (i32.load8_u $own (i32.add (local.get $at) (local.get $next))))
      (if (i32.or (i32.lt_u (local.get $first) (local.get $low)) (i32.gt_u (local.get $first) (local.get $high)))
        (then (return (i32.const 0))))
      (local.set $low (i32.const 0x80))
      (local.set $high (i32.const 0xbf))
      (local.set $next (i32.add (local.get $next) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $next) (local.get $length))))
    (local.get $length))

  ;; Logs the pending line of a descriptor, if it has one, with `?` for each byte that is not UTF-8: the host accepts no other text.
  (func $flush (param $descriptor i32)
    (local $start i32) (local $length i32) (local $level i32) (local $at i32) (local $end i32) (local $size i32)
    (local.set $length (i32.load $own (i32.mul (local.get $descriptor) (i32.const 4))))
    (i32.store $own (i32.mul (local.get $descriptor) (i32.const 4)) (i32.const 0))
    (if (i32.eqz (local.get $length)) (then (return)))
    (local.set $start (i32.add (i32.mul (local.get $descriptor) (i32.const 2048)) (i32.const 7)))
    (local.set $at (local.get $start))
    (local.set $end (i32.add (local.get $start) (local.get $length)))
    (loop $next
      (local.set $size (call $character (local.get $at) (local.get $end)))
      (if (i32.eqz (local.get $size)) (then
        (i32.store8 $own (local.get $at) (i32.const 63))
        (local.set $size (i32.const 1))))
      (local.set $at (i32.add (local.get $at) (local.get $size)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $end))))
    (i32.store8 $own (local.get $end) (i32.const 0)) ;; no text continues in bytes of an earlier line
    (local.set $level (local.get $descriptor)) ;; 1 is info, 2 is warn
    (if (i32.eq (local.get $descriptor) (i32.const 2)) (then
      (if (call $starts_with (local.get $start) (i32.const 256) (i32.const 7)) (then
        (local.set $level (i32.const 3))))
      ;; "fatal error: " of Go's runtime, and a failed `assert` of C.
      (if (i32.or (call $starts_with (local.get $start) (i32.const 263) (i32.const 13))
                  (call $starts_with (local.get $start) (i32.const 276) (i32.const 18))) (then
        (local.set $level (i32.const 3))
        (local.set $start (i32.sub (local.get $start) (i32.const 7)))
        (local.set $length (i32.add (local.get $length) (i32.const 7)))
        (memory.copy $own $own (local.get $start) (i32.const 256) (i32.const 7))))
      (if (i32.eq (local.get $level) (i32.const 3)) (then (global.set $reasoned (i32.const 1))))))
    (call $emit (local.get $level) (local.get $start) (local.get $length)))

  (func $push (param $descriptor i32) (param $byte i32)
    (local $length i32)
    (if (i32.eq (local.get $byte) (i32.const 10)) (then (call $flush (local.get $descriptor)) (return)))
    (local.set $length (i32.load $own (i32.mul (local.get $descriptor) (i32.const 4))))
    ;; A line is cut before the first byte of a character, at the latest after three more bytes.
    (if (i32.ge_u (local.get $length) (global.get $line_bytes)) (then
      (if (i32.or (i32.ne (i32.and (local.get $byte) (i32.const 0xc0)) (i32.const 0x80))
                  (i32.ge_u (local.get $length) (i32.add (global.get $line_bytes) (i32.const 3)))) (then
        (call $flush (local.get $descriptor))
        (local.set $length (i32.const 0))))))
    (i32.store8 $own offset=7
      (i32.add (i32.mul (local.get $descriptor) (i32.const 2048)) (local.get $length)) (local.get $byte))
    (i32.store $own (i32.mul (local.get $descriptor) (i32.const 4)) (i32.add (local.get $length) (i32.const 1))))

  (func $is_output (param $descriptor i32) (result i32)
    (i32.lt_u (i32.sub (local.get $descriptor) (i32.const 1)) (i32.const 2)))

  (func (export "fd_write") (param $descriptor i32) (param $parts i32) (param $count i32) (param $written i32) (result i32)
    (local $at i32) (local $end i32) (local $total i32)
    (if (i32.eqz (call $is_output (local.get $descriptor))) (then (return (i32.const 8))))
    (block $done
      (loop $part
        (br_if $done (i32.eqz (local.get $count)))
        (local.set $at (i32.load $stage (local.get $parts)))
        (local.set $end (i32.add (local.get $at) (i32.load $stage offset=4 (local.get $parts))))
        (local.set $total (i32.add (local.get $total) (i32.sub (local.get $end) (local.get $at))))
        (block $empty
          (loop $byte
            (br_if $empty (i32.eq (local.get $at) (local.get $end)))
            (call $push (local.get $descriptor) (i32.load8_u $stage (local.get $at)))
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (br $byte)))
        (local.set $parts (i32.add (local.get $parts) (i32.const 8)))
        (local.set $count (i32.sub (local.get $count) (i32.const 1)))
        (br $part)))
    (i32.store $stage (local.get $written) (local.get $total))
    (i32.const 0))

  ;; Logs what was written since the last line end.
  (func $sync (export "fd_sync") (export "fd_datasync") (param $descriptor i32) (result i32)
    (if (i32.eqz (call $is_output (local.get $descriptor))) (then (return (i32.const 8))))
    (call $flush (local.get $descriptor))
    (i32.const 0))

  ;; A character device that can be written: C libraries then write line by line.
  (func (export "fd_fdstat_get") (param $descriptor i32) (param $to i32) (result i32)
    (if (i32.eqz (call $is_output (local.get $descriptor))) (then (return (i32.const 8))))
    (i64.store $stage (local.get $to) (i64.const 2))
    (i64.store $stage offset=8 (local.get $to) (i64.const 64)) ;; the right `fd_write`
    (i64.store $stage offset=16 (local.get $to) (i64.const 0))
    (i32.const 0))

  (func (export "proc_exit") (param $code i32)
    (local $at i32) (local $rest i32)
    (call $flush (i32.const 1))
    (call $flush (i32.const 2))
    (if (i32.eqz (global.get $reasoned)) (then
      (local.set $at (i32.const 325)) ;; after the text, which begins at 294
      (local.set $rest (local.get $code))
      (loop $digits ;; counts
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br_if $digits (local.tee $rest (i32.div_u (local.get $rest) (i32.const 10)))))
      (local.set $rest (local.get $at))
      (loop $digits ;; writes, last first
        (local.set $rest (i32.sub (local.get $rest) (i32.const 1)))
        (i32.store8 $own (local.get $rest)
          (i32.add (i32.const 48) (i32.rem_u (local.get $code) (i32.const 10))))
        (br_if $digits (local.tee $code (i32.div_u (local.get $code) (i32.const 10)))))
      (call $emit (i32.const 3) (i32.const 294) (i32.sub (local.get $at) (i32.const 294)))))
    (unreachable))

  ;; ---- Random numbers and clocks ----

  ;; For SDKs, before each sample: random numbers start at its seed, and the time of day at its beginning.
  (func (export "penstock_seed") (param $seed i64)
    (global.set $random (local.get $seed))
    (global.set $slept (i64.const 0)))

  (func $draw (result i64)
    (local $bits i64)
    (global.set $random (i64.add (global.get $random) (i64.const 0x9e3779b97f4a7c15)))
    (local.set $bits (global.get $random))
    (local.set $bits (i64.mul
      (i64.xor (local.get $bits) (i64.shr_u (local.get $bits) (i64.const 30))) (i64.const 0xbf58476d1ce4e5b9)))
    (local.set $bits (i64.mul
      (i64.xor (local.get $bits) (i64.shr_u (local.get $bits) (i64.const 27))) (i64.const 0x94d049bb133111eb)))
    (i64.xor (local.get $bits) (i64.shr_u (local.get $bits) (i64.const 31))))

  (func (export "random_get") (param $to i32) (param $length i32) (result i32)
    (local $bits i64)
    (block $words_done
      (loop $words
        (br_if $words_done (i32.lt_u (local.get $length) (i32.const 8)))
        (i64.store $stage (local.get $to) (call $draw))
        (local.set $to (i32.add (local.get $to) (i32.const 8)))
        (local.set $length (i32.sub (local.get $length) (i32.const 8)))
        (br $words)))
    (block $done
      (br_if $done (i32.eqz (local.get $length)))
      (local.set $bits (call $draw))
      (loop $bytes
        (i64.store8 $stage (local.get $to) (local.get $bits))
        (local.set $bits (i64.shr_u (local.get $bits) (i64.const 8)))
        (local.set $to (i32.add (local.get $to) (i32.const 1)))
        (br_if $bytes (local.tee $length (i32.sub (local.get $length) (i32.const 1))))))
    (i32.const 0))

  (func $now (param $clock i32) (result i64)
    (select (global.get $monotonic) (i64.add (global.get $epoch) (global.get $slept)) (local.get $clock)))

  (func (export "clock_res_get") (param $clock i32) (param $to i32) (result i32)
    (if (i32.gt_u (local.get $clock) (i32.const 3)) (then (return (i32.const 28))))
    (i64.store $stage (local.get $to) (i64.const 1))
    (i32.const 0))

  (func (export "clock_time_get") (param $clock i32) (param $precision i64) (param $to i32) (result i32)
    (if (i32.gt_u (local.get $clock) (i32.const 3)) (then (return (i32.const 28))))
    (i64.store $stage (local.get $to) (call $now (local.get $clock)))
    (i32.const 0))

  ;; Time until a subscription is due: none for descriptors, which answer at once.
  (func $delay (param $from i32) (result i64)
    (local $time i64) (local $now i64)
    (if (i32.load8_u $stage offset=8 (local.get $from)) (then (return (i64.const 0))))
    (local.set $time (i64.load $stage offset=24 (local.get $from)))
    (if (i32.and (i32.load16_u $stage offset=40 (local.get $from)) (i32.const 1)) (then
      (local.set $now (call $now (i32.load $stage offset=16 (local.get $from))))
      (local.set $time (select
        (i64.sub (local.get $time) (local.get $now)) (i64.const 0) (i64.gt_u (local.get $time) (local.get $now))))))
    (local.get $time))

  ;; Answers at once: the clocks move to the first subscription that is due.
  (func (export "poll_oneoff") (param $from i32) (param $to i32) (param $count i32) (param $events i32) (result i32)
    (local $at i32) (local $left i32) (local $first i64) (local $made i32) (local $tag i32)
    (if (i32.eqz (local.get $count)) (then (return (i32.const 28))))
    (local.set $at (local.get $from))
    (local.set $left (local.get $count))
    (local.set $first (i64.const -1))
    (loop $shortest
      (local.set $first (select (call $delay (local.get $at)) (local.get $first)
        (i64.lt_u (call $delay (local.get $at)) (local.get $first))))
      (local.set $at (i32.add (local.get $at) (i32.const 48)))
      (br_if $shortest (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
    (loop $due
      (if (i64.eq (call $delay (local.get $from)) (local.get $first)) (then
        (local.set $tag (i32.load8_u $stage offset=8 (local.get $from)))
        (i64.store $stage (local.get $to) (i64.load $stage (local.get $from)))
        (i64.store $stage offset=16 (local.get $to) (i64.const 0))
        (i64.store $stage offset=24 (local.get $to) (i64.const 0))
        (i64.store $stage offset=8 (local.get $to) (i64.const 0))
        (i32.store8 $stage offset=10 (local.get $to) (local.get $tag))
        (if (local.get $tag) (then
          ;; Output can be written (tag 2); nothing else is open.
          (if (i32.eqz (i32.and (i32.eq (local.get $tag) (i32.const 2))
                                (call $is_output (i32.load $stage offset=16 (local.get $from))))) (then
            (i32.store16 $stage offset=8 (local.get $to) (i32.const 8))))))
        (local.set $to (i32.add (local.get $to) (i32.const 32)))
        (local.set $made (i32.add (local.get $made) (i32.const 1)))))
      (local.set $from (i32.add (local.get $from) (i32.const 48)))
      (br_if $due (local.tee $count (i32.sub (local.get $count) (i32.const 1)))))
    (global.set $slept (i64.add (global.get $slept) (local.get $first)))
    (global.set $monotonic (i64.add (global.get $monotonic) (local.get $first)))
    (i32.store $stage (local.get $events) (local.get $made))
    (i32.const 0))

  (func (export "sched_yield") (result i32) (i32.const 0))

  ;; ---- No arguments, no environment ----

  (func $nothing (export "args_get") (export "environ_get") (param i32 i32) (result i32) (i32.const 0))
  (func $no_sizes (export "args_sizes_get") (export "environ_sizes_get") (param $count i32) (param $bytes i32) (result i32)
    (i32.store $stage (local.get $count) (i32.const 0))
    (i32.store $stage (local.get $bytes) (i32.const 0))
    (i32.const 0))

  ;; ---- No files: 8 is `badf`, 52 is `nosys` ----

  (func (export "fd_advise") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_allocate") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_close") (param i32) (result i32) (i32.const 8))
  (func (export "fd_fdstat_set_flags") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_fdstat_set_rights") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_get") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_size") (param i32 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_times") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_pread") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_prestat_get") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_prestat_dir_name") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "fd_pwrite") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_read") (param i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "fd_readdir") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_renumber") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_seek") (param i32 i64 i32 i32) (result i32) (i32.const 8))
  (func (export "fd_tell") (param i32 i32) (result i32) (i32.const 8))
  (func (export "path_create_directory") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_filestat_get") (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_filestat_set_times") (param i32 i32 i32 i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "path_link") (param i32 i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_open") (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32) (i32.const 8))
  (func (export "path_readlink") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_remove_directory") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_rename") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_symlink") (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_unlink_file") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "proc_raise") (param i32) (result i32) (i32.const 52))
  (func (export "sock_accept") (param i32 i32 i32) (result i32) (i32.const 52))
  (func (export "sock_recv") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 52))
  (func (export "sock_send") (param i32 i32 i32 i32 i32) (result i32) (i32.const 52))
  (func (export "sock_shutdown") (param i32 i32) (result i32) (i32.const 52)))
