//! The documents name tests with which a reader can check their claims.

use crate::documents::assert_named_tests_exist;

#[test]
fn every_test_that_the_repair_documents_name_exists() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/develop/repair-tests.md");
    assert_named_tests_exist(document, 40, &[]);
}
