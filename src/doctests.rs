//! Compiles and runs the Rust blocks of the README and the book as documentation tests.

macro_rules! pages {
    ($($name:ident = $path:literal;)*) => {
        $(#[doc = include_str!($path)] struct $name;)*
    };
}

pages! {
    Readme = "../README.md";
    Introduction = "../docs/book/src/introduction.md";
    Tutorial = "../docs/book/src/tutorial.md";
    TrainingLoop = "../docs/book/src/training_loop.md";
    Async = "../docs/book/src/async.md";
    SymmetricMemory = "../docs/book/src/symmetric_memory.md";
    Errors = "../docs/book/src/errors.md";
    CustomAlgorithm = "../docs/book/src/custom_algorithm.md";
}
