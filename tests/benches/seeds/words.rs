//! Expected figures of each queue of the pipelines `002-*`, first to last, as the table shows them.

/// Expected figures of the queues of a run.
pub(crate) fn words(run: &str) -> &'static [&'static str] {
    match run {
        "single1" => &["put 30", "put 5, 100 %", "33/s, 100 %"],
        "single2" => &["", "put 0, get 35, 0 %", "28/s"],
        "multi1" => {
            &["put 40, ~100 %", "put 30, ~100 %", "put 15, ~100 %", "put 0, get 40, 0 %", "25/s, get 10, 0 %"]
        }
        "multi2" => {
            &["get 0", "put 0, get 15, 0 %", "put 0, get 30, 0 %", "put 0, get 40, 0 %", "25/s, get 10, 0 %"]
        }
        "multi3" => &["put 30, 100 %", "put 20, 100 %", "put 5, 100 %", "put 20, 100 %", "get 0, 100 %"],
        "multi4" => &["", "", "", "put 51", ""],
        "agg1" => &["put 7.5", "put 1.5, get 1.5, ~57 %", "33/s, put 24", "33/s, put 30, 100 %"],
        "agg2" => &["", "put 0, 0 %", "below 27.7/s, put 0, 0 %", "put 0, 0 %"],
        other => panic!("there is no pipeline `002-{other}`"),
    }
}
