//! Does every case have its test? What `tests/cases/README.md` says, held against the files. Native only: it reads the
//! repository.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// One row of the table: a case, and the tests that show its outcome.
struct Row {
    case: &'static str,
    tests: Vec<(&'static str, &'static str)>,
    /// Why there is none, or not all.
    left_out: bool,
}

fn rows() -> Vec<Row> {
    let table = include_str!("../cases/README.md").lines().filter(|line| line.starts_with("| C"));
    table
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let [case, _situation, _outcome, tests] = cells[..] else { panic!("four cells: {line}") };
            let named = tests.split('`').skip(1).step_by(2).filter_map(|test| test.split_once("::"));
            Row {
                case,
                tests: named.collect(),
                left_out: tests.contains("later: ") || tests.contains("pending: "),
            }
        })
        .collect()
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Names of the files of cases.
fn files() -> BTreeSet<String> {
    let listing = std::fs::read_dir(repository().join("tests/cases")).expect("a directory");
    let names = listing.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.as_bytes().get(1).is_some_and(u8::is_ascii_digit)).collect()
}

#[test]
fn every_case_has_its_row_and_every_file_is_in_the_tests() {
    let files = files();
    assert!(files.len() > 70);
    assert_eq!(files, cases::FILES.iter().map(|(name, _)| (*name).to_owned()).collect());
    let cases: BTreeSet<&str> = files.iter().filter_map(|name| name.get(..3)).collect();
    let rows = rows();
    assert_eq!(cases, rows.iter().map(|row| row.case).collect());
    assert_eq!(cases.len(), rows.len(), "a row twice");
}

#[test]
fn every_case_has_its_test() {
    for Row { case, tests, left_out } in rows() {
        assert!(left_out || !tests.is_empty(), "{case} has no test");
        for (file, test) in tests {
            let path = repository().join(Path::new(file));
            let source =
                std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{case}: {file}: {error}"));
            assert!(source.contains(&format!("fn {test}()")), "{case}: {file} has no {test}");
        }
    }
}
