//! Times the solver on the instances beside this file: problems of real training steps.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;

use criterion::{Criterion, criterion_group, criterion_main};
use flate2::read::MultiGzDecoder;
use hap::synthesis::solver::{Instance, Limits, solve};

/// As in the extension module.
#[cfg(not(feature = "python"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NAMES: [&str; 10] = [
    "vgg",
    "chains",
    "vit",
    "gpt2",
    "gpt2_b2",
    "bert",
    "moe",
    "llama8",
    "llama8_b2",
    "llama32",
];

fn instance(name: &str) -> Instance {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("benches/instances")
        .join(format!("{name}.json.gz"));
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    MultiGzDecoder::new(file)
        .read_to_string(&mut text)
        .expect("gzipped text");
    Instance::from_json(&text).expect("an instance")
}

fn instances(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("solve");
    group.sample_size(10);
    for name in NAMES {
        let instance = instance(name);
        group.bench_function(name, |bencher| {
            bencher.iter(|| solve(black_box(&instance.problem), &Limits::default()).expect("solvable"));
        });
    }
    group.finish();
}

criterion_group!(benches, instances);
criterion_main!(benches);
