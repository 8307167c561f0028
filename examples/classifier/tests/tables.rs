//! Tables of numbers: what is read, what is refused, and how features are scaled.

use unisono_classifier::{Standardizer, Table};

const IRIS: &str = include_str!("../data/iris.csv");

#[test]
fn iris_table_is_read_and_standardized() {
    let iris = Table::parse(IRIS).unwrap();
    assert_eq!((iris.rows(), iris.columns, iris.classes().unwrap()), (150, 4, 3));
    assert_eq!(iris.names[3..], ["petal_width", "species"]);
    assert_eq!(iris.features[..4], [5.1, 3.5, 1.4, 0.2]);
    let (mut training, mut validating) = iris.split(0.2, 4);
    assert_eq!((training.rows(), validating.rows()), (120, 30));
    let mut targets = [training.targets.clone(), validating.targets.clone()].concat();
    targets.sort_by(f32::total_cmp);
    assert_eq!(targets, iris.targets);
    let scaling = Standardizer::fit(&training);
    scaling.apply(&mut training);
    scaling.apply(&mut validating);
    let again = Standardizer::fit(&training);
    let mut untouched = training.clone();
    again.apply(&mut untouched);
    let are_near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
    assert!(training.features.iter().zip(&untouched.features).all(are_near), "not mean 0 and deviation 1");
    assert!(validating.features.iter().all(|value| value.abs() < 5.0));
}

#[test]
fn invalid_tables_name_the_line() {
    let error = |text: &str| Table::parse(text).unwrap_err();
    assert_eq!(error("a,b\n1,2\n\n1,2,3\n"), "line 4: 3 cells instead of 2");
    assert_eq!(error("1,2\n1,two\n"), "line 2: `two` is not a number");
    assert_eq!(error("1,2\n1,NaN\n"), "line 2: `NaN` is not a number");
    assert_eq!(error("1\n"), "line 1: 1 cells instead of 2");
    assert_eq!(error("a,b\n"), "no rows");
    let values = Table::parse("1,0.5\n1,2\n").unwrap();
    let error = |table: &Table| table.classes().unwrap_err().to_string();
    assert!(error(&values).contains("is not a class"));
    let huge = Table::parse("1,0\n2,1e30\n").unwrap();
    assert!(error(&huge).starts_with("class 1000000000000000000000000000000 in row 2 of 2"));
    let mut constant = values.clone();
    Standardizer::fit(&values).apply(&mut constant);
    assert_eq!(constant.features, [0.0, 0.0]);
}

#[test]
fn validation_rows_are_scaled_by_training_statistics() {
    let text: String = (0..40).map(|row| format!("{},{},{}\n", row, 7, row % 3)).collect();
    let (mut training, mut held_back) = Table::parse(&text).unwrap().split(0.25, 1);
    assert_eq!((training.rows(), held_back.rows()), (30, 10));
    let scaling = Standardizer::fit(&training);
    scaling.apply(&mut training);
    scaling.apply(&mut held_back);
    let samples = training.select(&[0, 1, 2]).samples();
    assert!(samples.features.iter().all(|feature| feature.abs() < 2.0));
    assert!(samples.labels.len() == 3 && samples.labels.iter().all(|&label| label < 3));
    // The constant column is 0 in rows that the statistics did not see, too.
    assert!(held_back.features.iter().skip(1).step_by(2).all(|&feature| feature == 0.0));
}
