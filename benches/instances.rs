//! Times the solver on the instances beside this file: problems of real training steps.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::{Path, PathBuf};

use criterion::{Criterion, criterion_group, criterion_main};
use flate2::read::MultiGzDecoder;
use hap::synthesis::solver::{Instance, Limits, solve};

/// As in the extension module.
#[cfg(not(feature = "python"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn paths() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instances");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "gz"));
    paths.sort();
    paths
}

fn instance(path: &Path) -> Instance {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    MultiGzDecoder::new(file)
        .read_to_string(&mut text)
        .expect("gzipped text");
    Instance::from_json(&text).expect("an instance")
}

fn instances(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("solve");
    group.sample_size(10);
    for path in paths() {
        let instance = instance(&path);
        group.bench_function(&instance.name, |bencher| {
            bencher.iter(|| solve(black_box(&instance.problem), &Limits::default()).expect("solvable"));
        });
    }
    group.finish();
}

criterion_group!(benches, instances);
criterion_main!(benches);
