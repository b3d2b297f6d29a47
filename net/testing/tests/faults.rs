//! The list of faults in ../FAULTS.md names tests; each of them must be there.

use std::path::Path;

/// The references of a line: what stands in backquotes and names a function of a file.
fn references(line: &str) -> Vec<(&str, &str)> {
    line.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.split_once(".rs::")).collect()
}

/// Whether `text` has a test of this name: a function right after its attribute, or a case of the port conformance suite.
fn has_test(text: &str, name: &str) -> bool {
    let Some(at) = text.find(&format!("fn {name}(")) else { return false };
    // Above it stand only its attributes (and, in a property test, what proptest is told).
    let above = text[..at].trim_end().lines().next_back().unwrap_or_default().trim();
    above.starts_with("#[") || text[at..].starts_with(&format!("fn {name}(bed: Bed) -> Outcome"))
}

#[test]
fn every_fault_of_the_list_is_shown_by_tests_that_exist() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2).expect("the workspace");
    let list = std::fs::read_to_string(here.join("FAULTS.md")).expect("the list");
    let rows: Vec<&str> = list.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| fault ")).collect();
    assert!(rows.len() >= 49, "the list has only {} faults", rows.len());
    let mut missing = Vec::new();
    for row in rows {
        let references = references(row);
        assert!(!references.is_empty(), "no test for: {row}");
        for (file, name) in references {
            let text = std::fs::read_to_string(root.join(format!("{file}.rs"))).unwrap_or_default();
            if !has_test(&text, name) {
                missing.push(format!("{file}.rs::{name}"));
            }
        }
    }
    assert!(missing.is_empty(), "FAULTS.md names tests that are not there: {missing:#?}");
}

#[test]
fn a_function_that_is_no_test_does_not_count() {
    assert!(has_test("#[test]\nfn a_b() {}", "a_b"));
    assert!(!has_test("fn a_b() {}", "a_b"));
    assert!(!has_test("#[test]\nfn a_b_c() {}", "a_b"));
    assert_eq!(references("| text | `a/b.rs::c`<br>`d.rs::e` |"), [("a/b", "c"), ("d", "e")]);
}
