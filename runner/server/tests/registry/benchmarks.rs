//! Reports of benchmarks are stored and listed, up to a limit.

use penstock_server::{
    BenchmarkQuery, BenchmarkSort, KeptBenchmark, MAX_BENCHMARK_BYTES, MAX_BENCHMARKS, PushedBenchmark, Runs,
};
use rusqlite::Connection;
use serde_json::json;

use crate::support::{Kind, open, stores};

/// Stores a small report that contains `number`.
async fn push(runs: &Runs, number: u32) -> PushedBenchmark {
    runs.keep_benchmark(json!({ "number": number }), number.to_string().into_bytes()).await.unwrap()
}

/// Lists all benchmarks, in pages of `limit`.
async fn all(runs: &Runs, limit: u32) -> Vec<KeptBenchmark> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let page = runs
            .benchmarks(BenchmarkQuery { cursor, limit: Some(limit), ..BenchmarkQuery::default() })
            .await
            .unwrap();
        assert!(page.items.len() <= limit as usize);
        all.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_are_listed_newest_first_until_they_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let mut pushed = Vec::new();
    for number in 0..7 {
        let PushedBenchmark { benchmark, is_new } = push(&runs, number).await;
        assert!(is_new);
        pushed.push(benchmark);
    }
    pushed.reverse();
    drop(runs);

    let runs = open(&data, stores(folder.path()));
    assert_eq!(all(&runs, 3).await, pushed);
    assert_eq!(all(&runs, 7).await, pushed);
    assert_eq!(runs.benchmark_report(&pushed[0].id).await.unwrap(), b"6");
    // The same report is not stored again, even if its summary differs.
    let again = runs.keep_benchmark(json!("other words"), b"6".to_vec()).await.unwrap();
    assert_eq!(again, PushedBenchmark { benchmark: pushed[0].clone(), is_new: false });

    runs.delete_benchmark(&pushed[0].id).await.unwrap();
    for error in [
        runs.delete_benchmark(&pushed[0].id).await.unwrap_err(),
        runs.benchmark_report(&pushed[0].id).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), "not-found");
    }
    assert_eq!(all(&runs, 50).await, pushed[1..]);
    let next = push(&runs, 6).await;
    assert!(next.is_new && next.benchmark.id != pushed[0].id);
    assert_eq!(all(&runs, 50).await[0], next.benchmark);
    let nonsense = BenchmarkQuery { cursor: Some("nonsense".to_owned()), ..BenchmarkQuery::default() };
    assert_eq!(runs.benchmarks(nonsense).await.unwrap_err().kind(), "refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn benchmarks_are_sorted_by_members_of_their_summaries_page_after_page() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    // Two reports have the same rate, and one lacks all members by which lists can be sorted.
    let rates = [Some(0.1), Some(1e9 / 3.0), None, Some(0.1), Some(7.0)];
    for (number, rate) in rates.into_iter().enumerate() {
        let fastest = rate.map(|rate| json!({ "items_per_s": rate }));
        let mut summary = json!({ "number": number, "name": format!("b{}", 9 - number), "fastest": fastest });
        if rate.is_none() {
            summary = json!({ "number": number });
        }
        runs.keep_benchmark(summary, number.to_string().into_bytes()).await.unwrap();
    }
    let sorted = async |sort: &str| -> Vec<u64> {
        let (sort, mut numbers, mut cursor) = (BenchmarkSort::parse(sort).unwrap(), Vec::new(), None);
        loop {
            let page = runs.benchmarks(BenchmarkQuery { sort, cursor, limit: Some(1) }).await.unwrap();
            numbers.extend(page.items.iter().map(|kept| kept.summary["number"].as_u64().unwrap()));
            cursor = page.next;
            if cursor.is_none() {
                return numbers;
            }
        }
    };
    assert_eq!(sorted("-items_per_s").await, [1, 4, 3, 0, 2]);
    assert_eq!(sorted("items_per_s").await, [2, 0, 3, 4, 1]);
    assert_eq!(sorted("name").await, [2, 4, 3, 1, 0]);
    assert_eq!(sorted("kept_at").await, [0, 1, 2, 3, 4]);
    assert_eq!(sorted("-objects").await, [4, 3, 2, 1, 0]);
    assert_eq!(BenchmarkSort::parse("summary"), None);
    runs.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_surplus_reports_are_removed_and_too_large_ones_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    for number in 0..MAX_BENCHMARKS + 2 {
        push(&runs, number).await;
    }
    let kept = all(&runs, 200).await;
    let numbers: Vec<u64> = kept.iter().map(|kept| kept.summary["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (2..u64::from(MAX_BENCHMARKS) + 2).rev().collect::<Vec<_>>());

    let large = |bytes: usize| runs.keep_benchmark(json!({}), vec![b' '; bytes]);
    assert_eq!(large(MAX_BENCHMARK_BYTES + 1).await.unwrap_err().kind(), "too-large");
    let largest = large(MAX_BENCHMARK_BYTES).await.unwrap().benchmark;
    assert_eq!(runs.benchmark_report(&largest.id).await.unwrap().len(), MAX_BENCHMARK_BYTES);
    let wordy = runs.keep_benchmark(json!("x".repeat(1 << 20)), b"{}".to_vec()).await;
    assert_eq!(wordy.unwrap_err().kind(), "refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_report_stored_many_times_at_once_is_one_benchmark() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let mut pushes = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let runs = runs.clone();
        pushes.spawn(async move { push(&runs, 1).await });
    }
    let pushes = pushes.join_all().await;
    assert_eq!(pushes.iter().filter(|push| push.is_new).count(), 1);
    assert!(pushes.iter().all(|push| push.benchmark == pushes[0].benchmark));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_report_does_not_affect_others() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let mut ids = Vec::new();
    for number in 0..3 {
        ids.push(push(&runs, number).await.benchmark.id);
    }
    let damage = Connection::open(data.join("penstock.sqlite")).unwrap();
    damage.execute("UPDATE benchmarks SET summary = '{' WHERE id = ?1", [&ids[0]]).unwrap();
    damage.execute("UPDATE benchmarks SET report = x'00' WHERE id = ?1", [&ids[1]]).unwrap();
    let listed: Vec<String> = all(&runs, 50).await.into_iter().map(|kept| kept.id).collect();
    assert_eq!(listed, [ids[2].as_str(), &ids[1]]);
    let error = runs.benchmark_report(&ids[1]).await.unwrap_err();
    assert!(error.to_string().starts_with("the history is damaged: the report of a benchmark"), "{error}");
    assert_eq!(runs.benchmark_report(&ids[2]).await.unwrap(), b"2");
}
