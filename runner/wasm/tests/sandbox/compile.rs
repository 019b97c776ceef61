//! Tests of compilation in a child process, and of children that misbehave.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use penstock_wasm::{
    Compilation, CompileLimits, Compiler, CompilerProcess, ModuleError, Sandbox, SandboxSettings,
};
use serde_json::json;

use crate::support::{apply, build, guest, sample, samples, settings};

/// Path of the compiling program of this build.
pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_penstock-compile-module"))
}

/// Sandbox without a cache that compiles in the given child process.
pub(crate) fn sandbox(process: CompilerProcess) -> Sandbox {
    Sandbox::new(SandboxSettings {
        instances: 4,
        compiler: Compiler::Child(process),
        ..SandboxSettings::default()
    })
    .unwrap()
}

/// Compiling program of this build, with changed limits.
pub(crate) fn limited(change: impl FnOnce(&mut CompileLimits)) -> CompilerProcess {
    let mut process = CompilerProcess::new(program(), [""; 0]);
    change(&mut process.limits);
    process
}

/// Shell script that runs in place of the compiler, and the folder in which it writes notes.
struct Script {
    folder: tempfile::TempDir,
    process: CompilerProcess,
}

fn script(text: &str) -> Script {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().display();
    // The script gets no environment, so it sets the search path itself.
    let whole = format!("PATH=/usr/bin:/bin; cd {notes}; echo started >> notes; {text}");
    let mut process = CompilerProcess::new("/bin/sh", ["-c", &whole]);
    process.limits.wall = Duration::from_secs(20);
    Script { folder, process }
}

impl Script {
    fn starts(&self) -> usize {
        fs::read_to_string(self.folder.path().join("notes")).unwrap().lines().count()
    }

    fn load(&self) -> Result<Compilation, ModuleError> {
        sandbox(self.process.clone()).load(&guest("batch")).map(|module| module.compilation())
    }

    /// Loads with the script and checks that two attempts fail. Returns the error.
    fn fails_twice(&self) -> String {
        let refused = self.load().unwrap_err();
        assert!(matches!(refused, ModuleError::Compiler { .. }), "{refused:?}");
        assert_eq!(self.starts(), 2);
        refused.to_string()
    }

    /// Loads with the script and checks that there is only one attempt, because a second child would fail in the same way.
    /// Returns the error.
    fn fails_once(&self) -> String {
        let refused = self.load().unwrap_err();
        assert!(!matches!(refused, ModuleError::Compiler { .. }), "{refused:?}");
        assert_eq!(self.starts(), 1);
        refused.to_string()
    }
}

#[test]
fn a_module_that_a_child_compiled_runs_like_one_of_this_process() {
    let core = guest("misbehaving");
    let component = wit_component::ComponentEncoder::default().module(&core).unwrap().encode().unwrap();
    let sandbox = sandbox(limited(|_| ()));
    for upload in [core, component] {
        let module = sandbox.load(&upload).unwrap();
        assert_eq!(module.compilation(), Compilation::Compiled);
        let mut op = build(&module.stage(settings(json!({ "how": "good" }))));
        assert_eq!(samples(apply(&mut *op, sample("a", 0))), [sample("a", 0)]);
    }
}

#[test]
fn code_of_a_child_and_of_this_process_share_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let with = |compiler| {
        let cache_dir = Some(folder.path().into());
        Sandbox::new(SandboxSettings { cache_dir, instances: 1, compiler, ..SandboxSettings::default() })
            .unwrap()
    };
    let (here, child) = (with(Compiler::InProcess), with(Compiler::Child(limited(|_| ()))));
    assert_eq!(child.load(&guest("batch")).unwrap().compilation(), Compilation::Compiled);
    assert_eq!(here.load(&guest("batch")).unwrap().compilation(), Compilation::Cached);
    assert_eq!(here.load(&guest("stateful")).unwrap().compilation(), Compilation::Compiled);
    assert_eq!(child.load(&guest("stateful")).unwrap().compilation(), Compilation::Cached);
}

#[test]
fn an_invalid_function_gives_the_same_error_in_a_child_as_in_this_process() {
    // The types and the manifest of this component are valid, but a function is not.
    let text = r#"(component
        (core module $m (func (export "f") (result i32)) (@custom "penstock.manifest" "{\"name\":\"m\",\"version\":\"1\"}"))
        (core instance $i (instantiate $m))
        (func $f (canon lift (core func $i "f")))
        (instance $t (export "init" (func $f)) (export "process" (func $f)) (export "finish" (func $f)))
        (export "penstock:stage/transform@0.1.0" (instance $t)))"#;
    let bytes = wat::parse_str(text).unwrap();
    let by_child = sandbox(limited(|_| ())).load(&bytes).unwrap_err().to_string();
    assert_eq!(by_child, crate::support::sandbox().load(&bytes).unwrap_err().to_string());
    assert!(by_child.starts_with("the module cannot be compiled: "), "{by_child}");
}

#[test]
fn a_refusal_that_is_longer_than_an_answer_is_cut_off() {
    let name = "A".repeat(20_000);
    let text = format!(
        r#"(component
        (type (record (field "{name}_" u32)))
        (core module $m (func (export "f")) (@custom "penstock.manifest" "{{\"name\":\"m\",\"version\":\"1\"}}"))
        (core instance $i (instantiate $m))
        (func $f (canon lift (core func $i "f")))
        (instance $t (export "init" (func $f)) (export "process" (func $f)) (export "finish" (func $f)))
        (export "penstock:stage/transform@0.1.0" (instance $t)))"#
    );
    let bytes = wat::parse_str(text).unwrap();
    let by_child = sandbox(limited(|_| ())).load(&bytes).unwrap_err().to_string();
    assert_eq!(by_child, crate::support::sandbox().load(&bytes).unwrap_err().to_string());
    assert!(
        by_child.starts_with("the module cannot be compiled: ") && by_child.ends_with("AAA…"),
        "{by_child}"
    );
}

#[test]
fn a_child_inherits_no_environment_and_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let _file = fs::File::create(folder.path().join("ours")).unwrap();
    let _socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let script = script("env > environment; ls -l /proc/self/fd > files; exit 3");
    script.fails_twice();
    let environment = fs::read_to_string(script.folder.path().join("environment")).unwrap();
    let names: Vec<&str> = environment.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    for name in names {
        // Except for `RAYON_NUM_THREADS`, the shell itself sets all of these variables.
        assert!(
            ["RAYON_NUM_THREADS", "PWD", "OLDPWD", "SHLVL", "_", "PATH"].contains(&name),
            "{environment}"
        );
    }
    let files = fs::read_to_string(script.folder.path().join("files")).unwrap();
    assert!(files.contains("0 -> pipe:"), "{files}");
    assert!(!files.contains("ours") && !files.contains("socket:"), "{files}");
}

#[test]
fn a_child_gets_the_configured_variables() {
    let mut script = script(r#"echo "$NEEDED" > needed; exit 3"#);
    script.process.environment = vec![("NEEDED".into(), "to begin".into())];
    script.fails_twice();
    assert_eq!(fs::read_to_string(script.folder.path().join("needed")).unwrap(), "to begin\n");
}

#[test]
fn a_child_that_is_killed_from_outside_is_started_once_more() {
    let script = script("kill -9 $$");
    insta::assert_snapshot!(script.fails_twice(), @"the compiler failed, through no fault of the module: the compiling process was killed from outside (SIGKILL), as the system does when memory runs out; tried 2 times");
    let other = self::script("kill -TERM $$");
    insta::assert_snapshot!(other.fails_twice(), @"the compiler failed, through no fault of the module: the compiling process was ended from outside (SIGTERM); tried 2 times");
}

#[test]
fn a_second_child_may_succeed() {
    let compiler = program().display();
    let script = script(&format!("if [ -e once ]; then exec {compiler}; fi; : > once; kill -9 $$"));
    assert_eq!(script.load().unwrap(), Compilation::Compiled);
    assert_eq!(script.starts(), 2);
}

#[test]
fn an_invalid_answer_is_an_error_of_the_process() {
    insta::assert_snapshot!(script("echo garbage that is no length").fails_twice(), @"the compiler failed, through no fault of the module: the compiling process sent an invalid result (2334385649822622055 bytes are announced, at most 16384 are expected); tried 2 times");
    insta::assert_snapshot!(script("exec yes").fails_twice(), @"the compiler failed, through no fault of the module: the compiling process sent an invalid result (754645927544294009 bytes are announced, at most 16384 are expected); tried 2 times");
    insta::assert_snapshot!(script(r"printf '\004\000\000\000\000\000\000\000null'").fails_twice(), @"the compiler failed, through no fault of the module: the compiling process sent an invalid result (expected value at line 1 column 1); tried 2 times");
    insta::assert_snapshot!(script("exit 0").fails_twice(), @"the compiler failed, through no fault of the module: the compiling process ended without a result (exit code 0); tried 2 times");
    insta::assert_snapshot!(script("echo no room >&2; exit 70").fails_twice(), @"the compiler failed, through no fault of the module: the compiling process ended without a result (exit code 70): no room; tried 2 times");
    // The process sends a complete answer, but then fails or sends more data.
    let compiled =
        r#"printf '\012\000\000\000\000\000\000\000"compiled"\004\000\000\000\000\000\000\000code'"#;
    insta::assert_snapshot!(script(&format!("{compiled}; exit 1")).fails_twice(), @"the compiler failed, through no fault of the module: the compiling process ended without a result (exit code 1); tried 2 times");
    insta::assert_snapshot!(script(&format!("{compiled}; echo more")).fails_twice(), @"the compiler failed, through no fault of the module: the compiling process sent an invalid result (unexpected data after the result); tried 2 times");
}

#[test]
fn code_that_the_engine_does_not_accept_is_refused() {
    let compiled =
        r#"printf '\012\000\000\000\000\000\000\000"compiled"\004\000\000\000\000\000\000\000code'"#;
    let refused = script(compiled).fails_once();
    assert!(
        refused.starts_with("the module cannot be compiled: the compiled code cannot be loaded: "),
        "{refused}"
    );
}

#[test]
fn a_crash_of_the_compiler_is_attributed_to_the_module() {
    insta::assert_snapshot!(script("kill -SEGV $$").fails_once(), @"the module cannot be compiled: the compiler crashed (SIGSEGV)");
    insta::assert_snapshot!(script("echo 'memory allocation of 99 bytes failed' >&2; kill -ABRT $$").fails_once(), @"compiling the module needs more than 2048 MiB of memory; split its largest functions and remove unused code, or have the operator raise the limit (`limits.compile.memory_mib`)");
    insta::assert_snapshot!(script("echo 'thread x has overflowed its stack' >&2; kill -ABRT $$").fails_once(), @"the module cannot be compiled: the compiler ran out of stack: the module's functions are nested too deeply (split the largest functions), or the types in its custom sections refer to each other in a cycle (keep the custom sections as the SDK writes them)");
    insta::assert_snapshot!(script("kill -XCPU $$").fails_once(), @"compiling the module needs more than 60 s of CPU time; split its largest functions and remove unused code, or have the operator raise the limit (`limits.compile.cpu_s`)");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "checks that a hanging child is not waited for")]
fn a_hanging_child_is_killed_with_all_processes_that_it_started() {
    let ways = [
        "exec sleep 600",
        "sleep 600 & echo $! > other; wait",
        "exec >&- 2>&-; exec sleep 600",
        "cat > /dev/null; exec sleep 600",
        "kill -STOP $$",
    ];
    for way in ways {
        let mut script = script(way);
        script.process.limits.wall = Duration::from_millis(300);
        let start = Instant::now();
        let refused = script.fails_once();
        assert_eq!(
            refused,
            "compiling the module takes longer than 0.3 s; split its largest functions and remove unused code, or have \
             the operator raise the limit (`limits.compile.wall_s`)"
        );
        assert!(start.elapsed() < Duration::from_secs(10), "{way}");
        if let Ok(other) = fs::read_to_string(script.folder.path().join("other")) {
            let state = || fs::read_to_string(format!("/proc/{}/stat", other.trim()));
            while state().is_ok_and(|state| !state.contains(") Z ")) {
                assert!(
                    start.elapsed() < Duration::from_secs(10),
                    "a process that the child started is still running"
                );
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn a_missing_program_is_named() {
    let process = CompilerProcess::new("/nowhere/compiler", [""; 0]);
    let refused = sandbox(process).load(&guest("batch")).unwrap_err();
    insta::assert_snapshot!(refused, @"the compiler failed, through no fault of the module: cannot start `/nowhere/compiler`: No such file or directory (os error 2); tried 2 times");
}

#[test]
fn a_compiling_process_ends_if_its_parent_has_ended() {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let request = json!({ "kind": "core", "is_look": false, "engine": "", "parent": 1, "module_bytes": 0, "memory_bytes": 1 << 30,
        "cpu_s": 9, "code_bytes": 9 });
    let request = request.to_string();
    let mut child = Command::new(program())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&(request.len() as u64).to_le_bytes()).unwrap();
    stdin.write_all(request.as_bytes()).unwrap();
    drop(stdin);
    let ended = child.wait_with_output().unwrap();
    assert!(!ended.status.success() && ended.stdout.is_empty());
    assert_eq!(String::from_utf8(ended.stderr).unwrap(), "cannot compile: the parent process has ended\n");
}

#[test]
fn a_hundred_loads_of_one_module_compile_it_once() {
    let compiler = program().display();
    let script = script(&format!("exec {compiler}"));
    let folder = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::new(SandboxSettings {
        cache_dir: Some(folder.path().into()),
        instances: 1,
        compiler: Compiler::Child(script.process.clone()),
        ..SandboxSettings::default()
    })
    .unwrap();
    let bytes = guest("batch");
    let compiled = std::thread::scope(|scope| {
        let all: Vec<_> =
            (0..100).map(|_| scope.spawn(|| sandbox.load(&bytes).unwrap().compilation())).collect();
        all.into_iter().map(|one| one.join().unwrap()).filter(|how| *how == Compilation::Compiled).count()
    });
    assert_eq!((compiled, script.starts()), (1, 1));
    // The cache folder contains one entry, its module's digest, and the key.
    assert_eq!(fs::read_dir(folder.path().join("compiled")).unwrap().count(), 3);
}

#[test]
fn two_modules_are_compiled_at_a_time_and_the_others_wait() {
    let compiler = program().display();
    // Each child records the number of children, including itself, that have started and are not yet reaped.
    let script = script(&format!(
        "mkdir -p at; : > at/$$; n=0; for f in at/*; do kill -0 ${{f#at/}} 2>&- && n=$((n+1)); done; echo $n >> most; \
         exec {compiler}"
    ));
    let sandbox = sandbox(script.process.clone());
    let core = guest("batch");
    std::thread::scope(|scope| {
        for number in 0..6_u8 {
            // A different custom section makes each upload a different module.
            let bytes = [core.as_slice(), &[0, 3, 1, b'n', number]].concat();
            let sandbox = &sandbox;
            scope.spawn(move || sandbox.load(&bytes).unwrap());
        }
    });
    let most = fs::read_to_string(script.folder.path().join("most")).unwrap();
    assert!(most.lines().all(|count| count.trim().parse::<u32>().unwrap() <= 2), "{most}");
    assert_eq!(script.starts(), 6);
}
