//! Rules of real drivers: what each refuses or waits for, and that it does not when it is off.

mod calls;
mod captures;
mod memory;
mod newer;
mod sharing;
mod waits;
mod world;

/// Every rule has a test that names it.
#[test]
fn every_rule_has_a_test() {
    world::with("every_rule_has_a_test", &[], |device| {
        let texts = [
            include_str!("calls.rs"),
            include_str!("captures.rs"),
            include_str!("memory.rs"),
            include_str!("newer.rs"),
            include_str!("sharing.rs"),
            include_str!("waits.rs"),
        ];
        let rules = calls::rules(device);
        assert!(rules.len() > 10, "{rules:?}");
        for (rule, _) in rules {
            let names = [format!("\"{rule}\""), format!(",{rule}\"")];
            let is_named = names.iter().any(|name| texts.iter().any(|text| text.contains(name)));
            assert!(is_named, "{rule} has no test");
        }
    });
}
