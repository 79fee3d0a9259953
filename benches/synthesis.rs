//! Whole syntheses (tables, search, emission) of graphs traced from real models: `benches/graphs/*.json.gz`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use criterion::Criterion;
use flate2::read::GzDecoder;
use hap::cluster::{Cluster, Device, Group, Link, Member};
use hap::graph::Graph;
use hap::memory::Temporaries;
use hap::synthesis::{MemoryPrices, Request, synthesise};

/// As in the extension module.
#[cfg(not(feature = "python"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Relative speeds: eight devices, half of them twice as fast as the others; or 1,024 of four kinds.
fn speeds(name: &str) -> Vec<u64> {
    let (kinds, each) = if name.ends_with("_1024") { (4, 256) } else { (2, 4) };
    (1..=kinds).rev().flat_map(|speed| vec![speed; each]).collect()
}

fn cluster(speeds: &[u64]) -> Cluster {
    let device = |(rank, &speed): (usize, &u64)| {
        Member::Device(Device {
            name: format!("device {rank}"),
            flops: BTreeMap::from([("default".to_owned(), 7e12 * speed as f64)]),
            memory_bandwidth: 4e11 * speed as f64,
            memory: 16e9,
            launch_overhead: 1e-5,
            ..Device::default()
        })
    };
    let link = Link {
        bandwidth: 1.25e9,
        latency: 5e-5,
        ..Link::default()
    };
    let root = Group {
        link,
        members: speeds.iter().enumerate().map(device).collect(),
    };
    Cluster {
        format: "hap-cluster-1".to_owned(),
        root,
        collectives: BTreeMap::new(),
        overlap: 0.0,
        interference: 0.0,
        contention: 0.0,
        fingerprint: None,
    }
}

/// Every axis split in proportion to speed.
fn request(graph: &Graph, speeds: &[u64]) -> Request {
    let total: u64 = speeds.iter().sum();
    let units = |size: u64| {
        let bound = |rank: usize| size * speeds[..rank].iter().sum::<u64>() / total;
        (0..speeds.len()).map(|rank| bound(rank + 1) - bound(rank)).collect()
    };
    let splits = graph
        .axes
        .iter()
        .map(|axis| (axis.name.clone(), units(axis.size)))
        .collect();
    Request {
        splits,
        ..Request::default()
    }
}

/// The same, where a step's seconds and a device's bytes weigh about the same: with recomputation and re-gathering.
fn memory_priced(mut request: Request) -> Request {
    request.prices.memory = Some(MemoryPrices {
        seconds_per_byte: vec![1e-12; 8],
        between: 1.0,
        optimiser_tensors: 2,
        temporaries: Temporaries::default(),
        segments: 1,
        skew: 0.0,
    });
    request
}

/// The graphs that are solved with prices of memory, too.
const WITH_MEMORY: [&str; 2] = ["gpt2_12", "llama_8"];

fn graphs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/graphs");
    let entries = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = entries
        .filter(|path| path.to_string_lossy().ends_with(".json.gz"))
        .collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> Graph {
    let mut json = Vec::new();
    GzDecoder::new(File::open(path).expect("a file"))
        .read_to_end(&mut json)
        .expect("gzip");
    Graph::from_json(&json).expect("a graph")
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let paths = graphs();
    if paths.is_empty() {
        eprintln!("no graphs in benches/graphs: nothing to measure");
    }
    for path in paths {
        let name = path
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().replace(".json.gz", ""));
        let graph = read(&path);
        let speeds = speeds(&name);
        let (cluster, request) = (cluster(&speeds), request(&graph, &speeds));
        let mut requests = vec![(name.clone(), request.clone())];
        if WITH_MEMORY.contains(&name.as_str()) {
            requests.push((format!("{name}_memory"), memory_priced(request)));
        }
        let operators = graph.operators.len();
        for (name, request) in requests {
            let found = synthesise(&graph, &cluster, &request).expect("a program");
            eprintln!(
                "{name}: {operators} operators, cost {:.6} s, gap {}",
                found.cost, found.search_gap
            );
            criterion.bench_function(&name, |bencher| bencher.iter(|| synthesise(&graph, &cluster, &request)));
        }
    }
    criterion.final_summary();
}
