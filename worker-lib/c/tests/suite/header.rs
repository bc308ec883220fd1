//! Checks that `include/switchml.h` declares what the library exports.

#[test]
fn the_committed_header_is_what_the_library_has() {
    let crate_folder = env!("CARGO_MANIFEST_DIR");
    let builder = cbindgen::Builder::new()
        .with_config(cbindgen::Config::from_root_or_default(crate_folder))
        .with_src(format!("{crate_folder}/src/lib.rs"));
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    expect_test::expect_file!["../../include/switchml.h"]
        .assert_eq(&String::from_utf8(header).unwrap());
}
