//! The tables of the history, and migrations of older files.

use rusqlite::Connection;

use super::runs::{CHANGING, FILL_VERDICTS, TAGS};

/// Application id that marks the file as a history of Penstock: `PSTK`.
const APPLICATION: i32 = 0x5053_544b;

/// Statements that migrate each version of the schema to the next version. Never change the statements of a released version.
const MIGRATIONS: [&str; 8] =
    [RUNS_AND_MODULES, BENCHMARKS, POSTCARD, PERMIT_WAIT, AUDIT, BOOKS, ROW_TIMES, RESUME];

const RUNS_AND_MODULES: &str = "
    CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        state TEXT NOT NULL,
        error TEXT,
        submitted_at TEXT NOT NULL,
        started_at TEXT,
        ended_at TEXT,
        elapsed_s REAL,
        threads INTEGER NOT NULL,
        memory_mib INTEGER NOT NULL,
        samples INTEGER,
        expected INTEGER,
        failed_samples INTEGER NOT NULL DEFAULT 0,
        readiness REAL,
        wait_s REAL,
        qps REAL,
        modules TEXT NOT NULL,          -- [name@version], in stage order
        digests TEXT NOT NULL,          -- {stage: digest}
        document TEXT NOT NULL,         -- as it was sent
        layout TEXT NOT NULL,           -- its stages and queues
        snapshot TEXT,                  -- the last one
        for_s REAL,
        cloned_from TEXT,
        key TEXT UNIQUE,                -- Idempotency-Key, for a day
        request BLOB,                   -- digest of the request that came with it
        history TEXT,                   -- why its history is not whole
        errors_left_out INTEGER NOT NULL DEFAULT 0,
        logs_left_out INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX runs_by_time ON runs (submitted_at, id);
    CREATE TABLE run_modules (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        digest TEXT NOT NULL,
        PRIMARY KEY (run, digest)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX runs_by_module ON run_modules (digest);
    CREATE TABLE chunks (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        level INTEGER NOT NULL,
        number INTEGER NOT NULL,        -- slot / 256
        last_slot INTEGER NOT NULL,
        written_at INTEGER NOT NULL,    -- seconds since 1970
        data BLOB NOT NULL,
        PRIMARY KEY (run, level, number)
    ) STRICT;
    CREATE TABLE times (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        data BLOB NOT NULL,             -- a histogram of task times for each stage
        PRIMARY KEY (run, number)
    ) STRICT;
    CREATE TABLE errors (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        stage TEXT NOT NULL,
        class TEXT NOT NULL,
        key TEXT NOT NULL,
        message TEXT NOT NULL,
        error TEXT NOT NULL,            -- all of it as JSON
        PRIMARY KEY (run, number)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE logs (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        stage TEXT NOT NULL,
        level INTEGER NOT NULL,
        at_s REAL NOT NULL,
        message TEXT NOT NULL,
        PRIMARY KEY (run, number)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE module_names (
        name TEXT PRIMARY KEY,
        last_version INTEGER NOT NULL   -- a number is never given twice
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE modules (
        name TEXT NOT NULL REFERENCES module_names (name),
        version INTEGER NOT NULL,
        digest TEXT NOT NULL UNIQUE,
        report TEXT NOT NULL,
        uploaded_at TEXT NOT NULL,
        PRIMARY KEY (name, version)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE aliases (
        name TEXT NOT NULL,
        alias TEXT NOT NULL,
        version INTEGER NOT NULL,
        PRIMARY KEY (name, alias),
        FOREIGN KEY (name, version) REFERENCES modules (name, version)
    ) STRICT, WITHOUT ROWID;
";

const BENCHMARKS: &str = "
    CREATE TABLE benchmarks (
        number INTEGER PRIMARY KEY,     -- the order in which they came, whatever the clock says
        id TEXT NOT NULL UNIQUE,
        kept_at TEXT NOT NULL,
        digest BLOB NOT NULL UNIQUE,    -- SHA-256 of the report
        summary TEXT NOT NULL,          -- what lists show, as JSON
        report BLOB NOT NULL            -- compressed; the last column, so that lists need not read over it
    ) STRICT;
";

/// From this version on, chunks are encoded by `postcard`. Older chunks stay unchanged, since the first byte of a chunk states
/// its form: a conversion could take long or be interrupted.
const POSTCARD: &str = "ALTER TABLE chunks RENAME COLUMN last_slot TO last_row;";

/// From this version on, rows have one more sum for each stage: the wait for permits. Older chunks stay unchanged. The number of
/// the version keeps earlier programs from reading the new chunks.
const PERMIT_WAIT: &str = "";

const AUDIT: &str = "
    CREATE TABLE audit (
        number INTEGER PRIMARY KEY,     -- order of arrival; clocks may jump
        at TEXT NOT NULL,
        token TEXT NOT NULL,            -- its name
        address TEXT NOT NULL,
        action TEXT NOT NULL,
        target TEXT NOT NULL,
        status INTEGER                  -- of the answer; NULL where the client left before it
    ) STRICT;
";

/// From this version on, chunks hold task times, waits, and one more sum for each stage: the replaced instances. Older chunks
/// stay unchanged; earlier versions of the program cannot read the new chunks.
const ROW_TIMES: &str = "";

/// Packed ledgers of the rows of a chunk; NULL in chunks of earlier versions.
const BOOKS: &str = "ALTER TABLE chunks ADD COLUMN books BLOB;";

/// States from which runs are resumed. They have a table of their own, so that lists of runs need not read over them.
const RESUME: &str = "
    CREATE TABLE resume_states (
        run TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
        state TEXT                      -- NULL where the run cannot be resumed
    ) STRICT;
    ALTER TABLE runs ADD COLUMN resumes TEXT;
";

/// Statement that sets the owners of names in a history of an earlier version, which stored none: the token of the last upload in
/// the audit log. `anyone` is no token.
const FILL_OWNERS: &str = "
    UPDATE module_names SET owner = nullif(last.token, 'anyone') FROM (
        SELECT substr(made, 1, instr(made, '/versions/') - 1) AS name, token, max(number) FROM (
            SELECT substr(target, instr(target, ' -> modules/') + 12) AS made, token, number FROM audit
            WHERE action = 'upload_module' AND status = 201 AND instr(target, ' -> modules/') > 0
        ) GROUP BY 1
    ) AS last WHERE last.name = module_names.name;
";

/// Version of the schema that this program reads and writes.
pub(crate) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Kind of database that [`migrate`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Ready,
    Newer(i64),
    Foreign,
}

/// Migrates the file to this program's schema, unless it is newer or belongs to another program.
pub(crate) fn migrate(connection: &mut Connection) -> rusqlite::Result<Found> {
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, version) = (number("application_id")?, number("user_version")?);
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if application != i64::from(APPLICATION) && (tables > 0 || version != 0) {
        return Ok(Found::Foreign);
    }
    if version > VERSION {
        return Ok(Found::Newer(version));
    }
    for (migration, to) in MIGRATIONS.iter().zip(1..).skip(version as usize) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(migration)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", to)?;
        transaction.commit()?;
    }
    let knew_verdicts = connection.column_exists(None, "runs", "verdict")?;
    for (column, kind) in CHANGING.into_iter().chain([TAGS]) {
        if !connection.column_exists(None, "runs", column)? {
            connection.execute_batch(&format!("ALTER TABLE runs ADD COLUMN {column} {kind}"))?;
        }
    }
    if !knew_verdicts {
        connection.execute_batch(FILL_VERDICTS)?;
    }
    if !connection.column_exists(None, "module_names", "owner")? {
        let transaction = connection.transaction()?;
        transaction.execute_batch("ALTER TABLE module_names ADD COLUMN owner TEXT")?;
        transaction.execute_batch(FILL_OWNERS)?;
        transaction.commit()?;
    }
    Ok(Found::Ready)
}

#[cfg(test)]
mod tests {
    use super::super::runs::find;
    use super::*;

    #[test]
    fn an_empty_file_is_migrated_once() {
        let mut file = Connection::open_in_memory().unwrap();
        assert_eq!(migrate(&mut file).unwrap(), Found::Ready);
        assert_eq!(migrate(&mut file).unwrap(), Found::Ready);
    }

    #[test]
    fn a_file_of_the_first_version_keeps_its_data() {
        let mut file = Connection::open_in_memory().unwrap();
        file.execute_batch(RUNS_AND_MODULES).unwrap();
        file.pragma_update(None, "application_id", APPLICATION).unwrap();
        file.pragma_update(None, "user_version", 1).unwrap();
        file.execute("INSERT INTO module_names (name, last_version) VALUES ('a', 3)", []).unwrap();
        assert_eq!(migrate(&mut file).unwrap(), Found::Ready);
        let one = |query| file.query_row(query, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(one("PRAGMA user_version"), VERSION);
        assert_eq!(one("SELECT last_version FROM module_names WHERE name = 'a'"), 3);
        assert_eq!(one("SELECT count(*) FROM benchmarks") + one("SELECT count(*) FROM audit"), 0);
    }

    #[test]
    fn a_missing_column_of_summaries_is_added_and_its_runs_can_be_read() {
        for (column, _) in CHANGING.into_iter().chain([TAGS]) {
            let mut file = Connection::open_in_memory().unwrap();
            migrate(&mut file).unwrap();
            let insert = "INSERT INTO runs (id, name, state, submitted_at, threads, memory_mib, modules, digests, document, layout) \
                 VALUES ('r', 'old', 'completed', '', 1, 1, '[]', '{}', '{}', '{}')";
            file.execute(insert, []).unwrap();
            file.execute_batch(&format!("ALTER TABLE runs DROP COLUMN {column}")).unwrap();
            assert_eq!(migrate(&mut file).unwrap(), Found::Ready);
            let found = find(&file, "r").unwrap_or_else(|error| panic!("{column}: {error}")).unwrap();
            assert_eq!((found.summary.name.as_str(), found.summary.failed_samples), ("old", 0), "{column}");
        }
    }

    #[test]
    fn names_of_modules_belong_to_the_tokens_of_their_last_uploads() {
        let mut file = Connection::open_in_memory().unwrap();
        migrate(&mut file).unwrap();
        file.execute_batch("ALTER TABLE module_names DROP COLUMN owner").unwrap();
        let names = ["image", "Image", "im_ge", "audio", "text", "open", "unlogged"];
        for name in names {
            file.execute("INSERT INTO module_names (name, last_version) VALUES (?1, 9)", [name]).unwrap();
        }
        for (token, action, target, status) in [
            ("first", "upload_module", "modules -> modules/image/versions/1", Some(201)),
            ("ci", "upload_module", "modules?alias=stable -> modules/image/versions/2", Some(201)),
            // These requests have changed nothing, or are no uploads.
            ("again", "upload_module", "modules -> modules/image/versions/1", Some(200)),
            ("left", "upload_module", "modules", None),
            ("admin", "set_alias", "modules/image/aliases/a -> modules/image/versions/1", Some(201)),
            ("upper", "upload_module", "modules -> modules/Image/versions/1", Some(201)),
            ("operator", "upload_module", "modules -> modules/audio/versions/1", Some(201)),
            ("runner", "upload_module", "modules -> modules/text/versions/1", Some(201)),
            ("runner", "upload_module", "modules -> modules/open/versions/1", Some(201)),
            ("anyone", "upload_module", "modules -> modules/open/versions/2", Some(201)),
            ("runner", "upload_module", "modules -> modules/removed/versions/1", Some(201)),
        ] {
            file.execute(
                "INSERT INTO audit (at, token, address, action, target, status) VALUES ('', ?1, '', ?2, ?3, ?4)",
                rusqlite::params![token, action, target, status],
            )
            .unwrap();
        }
        let owner = |file: &Connection, name: &str| -> Option<String> {
            file.query_row("SELECT owner FROM module_names WHERE name = ?1", [name], |row| row.get(0))
                .unwrap()
        };
        // The log decides once; later entries change no owner.
        for _ in 0..2 {
            assert_eq!(migrate(&mut file).unwrap(), Found::Ready);
            let owners = names.map(|name| owner(&file, name));
            let expected = [Some("ci"), Some("upper"), None, Some("operator"), Some("runner"), None, None];
            assert_eq!(owners, expected.map(|owner| owner.map(str::to_owned)));
            let late = "INSERT INTO audit (at, token, address, action, target, status) \
                 VALUES ('', 'late', '', 'upload_module', 'modules -> modules/text/versions/2', 201)";
            file.execute(late, []).unwrap();
        }
    }

    #[test]
    fn a_newer_file_and_a_foreign_file_are_not_changed() {
        let mut newer = Connection::open_in_memory().unwrap();
        migrate(&mut newer).unwrap();
        newer.pragma_update(None, "user_version", VERSION + 1).unwrap();
        assert_eq!(migrate(&mut newer).unwrap(), Found::Newer(VERSION + 1));
        let mut foreign = Connection::open_in_memory().unwrap();
        foreign.execute_batch("CREATE TABLE bookmarks (url TEXT)").unwrap();
        assert_eq!(migrate(&mut foreign).unwrap(), Found::Foreign);
    }
}
